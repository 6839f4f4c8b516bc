"""What a replay will do."""

from timer_service.core.instant import format_instant


def replay_line(since: int) -> str:
    """Return what the next start of the service does. `since` is in Unix milliseconds; 0 means all commands."""
    which = f"that the broker stored since {format_instant(since)}" if since else "that the broker still has"
    return f"At its next start, the service handles all commands again {which}. Commands that it knows change nothing."
