"""Reads the readiness page of the running service."""

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from timer_service.config import Config

_TIMEOUT_SECONDS = 2
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing listens here


def read_readiness(config: Config) -> Mapping[str, str] | None:
    """Return the page at TIMER_HTTP_HOST and TIMER_HTTP_PORT, or None if nothing answers or another program does.

    It has `ok` or a reason for each flow and for the service itself.
    """
    try:
        with closing(HTTPConnection(*_address(config), timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/readyz")
            page = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return None
    is_ours = isinstance(page, dict) and "service" in page and all(isinstance(each, str) for each in page.values())
    return page if is_ours else None


def no_answer_text(config: Config) -> str:
    """Return what is wrong if there is no page."""
    host, port = _address(config)
    return f"no service answers at http://{host}:{port}/readyz"


def _address(config: Config) -> tuple[str, int]:
    return _ANY_ADDRESS.get(config.http_host, config.http_host), config.http_port
