"""The flows of the running service, as its readiness page reports them."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from timer_service.cli.doctor.finding import Finding, Status
from timer_service.config import Config

_TIMEOUT_SECONDS = 2
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing listens here


async def read_page(config: Config) -> Mapping[str, str] | None:
    """Return the page at TIMER_HTTP_HOST and TIMER_HTTP_PORT, or None if nothing answers or another program does.

    It has `ok` or a reason for each flow and for the service itself.
    """
    return await asyncio.to_thread(_read_page, *_address(config))


def check_page(config: Config, page: Mapping[str, str] | None) -> Iterator[Finding]:
    """Return a finding for each flow on the page. None: no service answers."""
    if page is not None:
        yield from check_readiness(page)
        return
    host, port = _address(config)
    text = f"no service answers at http://{host}:{port}/readyz"
    remedy = "Run doctor on the machine of the service, with its TIMER_HTTP_HOST and TIMER_HTTP_PORT."
    yield Finding("service", Status.NOTE, text, remedy)


def check_readiness(page: Mapping[str, str]) -> Iterator[Finding]:
    """Check the page of a service that answers."""
    for name, reason in page.items():
        check = "service" if name == "service" else f"flow of {name}"
        if reason == "ok":
            yield Finding(check, Status.OK, "ok")
        elif name == "service":
            yield Finding(check, Status.WARN, reason, "Start it again if it does not start by itself.")
        else:
            yield Finding(check, Status.FAIL, reason, "Fix the part that the reason names.")


def _address(config: Config) -> tuple[str, int]:
    return _ANY_ADDRESS.get(config.http_host, config.http_host), config.http_port


def _read_page(host: str, port: int) -> Mapping[str, str] | None:
    try:
        with closing(HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/readyz")
            page = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return None
    is_ours = isinstance(page, dict) and "service" in page and all(isinstance(each, str) for each in page.values())
    return page if is_ours else None
