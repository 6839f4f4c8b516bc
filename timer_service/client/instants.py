"""Instants as they come over the wire."""

from datetime import datetime


def read_instant(text: str | None) -> datetime | None:
    """Read one that may be missing."""
    return None if text is None else datetime.fromisoformat(text)
