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


async def check_flows(config: Config) -> list[Finding]:
    """Read the page of the service at TIMER_HTTP_HOST and TIMER_HTTP_PORT, and return a finding for each flow."""
    host = _ANY_ADDRESS.get(config.http_host, config.http_host)
    page = await asyncio.to_thread(_read_page, host, config.http_port)
    if page is None:
        text = f"no service answers at http://{host}:{config.http_port}/readyz"
        remedy = "Run doctor on the machine of the service, with its TIMER_HTTP_HOST and TIMER_HTTP_PORT."
        return [Finding("service", Status.NOTE, text, remedy)]
    return list(check_readiness(page))


def check_readiness(page: Mapping[str, str]) -> Iterator[Finding]:
    """Check the page: it has `ok` or a reason for each flow and for the service itself."""
    for name, reason in page.items():
        check = "service" if name == "service" else f"flow of {name}"
        if reason == "ok":
            yield Finding(check, Status.OK, "ok")
        elif name == "service":
            yield Finding(check, Status.WARN, reason, "Start it again if it does not start by itself.")
        else:
            yield Finding(check, Status.FAIL, reason, "Fix the part that the reason names.")


def _read_page(host: str, port: int) -> Mapping[str, str] | None:
    """Return the page, or None if nothing answers or another program does."""
    try:
        with closing(HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/readyz")
            page = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return None
    is_ours = isinstance(page, dict) and "service" in page and all(isinstance(each, str) for each in page.values())
    return page if is_ours else None
