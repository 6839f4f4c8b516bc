"""`timer-service healthcheck`."""

from collections.abc import Mapping

import typer

from timer_service.cli.output.text import one_line
from timer_service.cli.readiness import no_answer_text, read_readiness
from timer_service.config import load_config


def healthcheck() -> None:
    """Ask the running service whether it is ready. Exit with 0 if it is, else with 1 and one line with the reason."""
    config = load_config()
    page = read_readiness(config)
    reason = no_answer_text(config) if page is None else reason_text(page)
    if reason:
        typer.echo(one_line(f"not ready: {reason}"), err=True)
        raise typer.Exit(1)
    typer.echo("ready")


def reason_text(page: Mapping[str, str]) -> str:
    """Return why the service is not ready, each reason once with the flows that it stops; empty if it is ready."""
    stopped: dict[str, list[str]] = {}
    for name, reason in page.items():
        if reason != "ok":
            stopped.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in stopped.items())
