"""`timer-service healthcheck`, and the readiness page of the running service."""

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException

import typer

from timer_service.cli.output import one_line
from timer_service.config import Config, load_config

_TIMEOUT_SECONDS = 2


def healthcheck() -> None:
    """Ask the running service whether it is ready. Exit with 0 if it is, else with 1 and one line with the reason."""
    config = load_config()
    page = read_readiness(config)
    reason = no_answer_text(config) if page is None else _reason(page)
    if reason:
        typer.echo(one_line(f"not ready: {reason}"), err=True)
        raise typer.Exit(1)
    typer.echo("ready")


def read_readiness(config: Config) -> Mapping[str, str] | None:
    """Return the page at TIMER_HTTP_HOST and TIMER_HTTP_PORT, or None if nothing answers or another program does.

    It has `ok` or a reason for each flow and for the service itself.
    """
    try:
        with closing(HTTPConnection(config.http_host, config.http_port, timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/readyz")
            page = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return None
    is_ours = isinstance(page, dict) and "service" in page and all(isinstance(each, str) for each in page.values())
    return page if is_ours else None


def no_answer_text(config: Config) -> str:
    """Return what is wrong if there is no page."""
    return f"no service answers at http://{config.http_host}:{config.http_port}/readyz"


def _reason(page: Mapping[str, str]) -> str:
    """Return why the service is not ready, each reason once with the flows that it stops; empty if it is ready."""
    stopped: dict[str, list[str]] = {}
    for name, reason in page.items():
        if reason != "ok":
            stopped.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in stopped.items())
