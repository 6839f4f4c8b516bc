"""What the commands that speak to the broker take alike."""

from datetime import UTC, datetime

import typer

from timer_service.core.instant import parse_instant


def instant(option: str, text: str | None) -> datetime:
    """Read an option's instant; raise what typer shows."""
    try:
        return datetime.fromtimestamp(parse_instant(text) / 1000, UTC)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {error}") from error
