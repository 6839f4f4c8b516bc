"""Reads the log of a broker in this process, one turn after the other."""

from timer_service.core.intake.reader import LogReader


async def catch_up(reader: LogReader) -> None:
    """Apply all commands that are in the log, and those that wait and may be applied now."""
    assert await reader.begin()
    while await reader.turn():
        pass
