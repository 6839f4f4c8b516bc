"""What a replay will do."""

from timer_service.core.values.instant import format_instant


def replay_text(since: int) -> str:
    """Return what the next start of the service does. `since` is in Unix milliseconds; 0 means all commands."""
    which = f"that the broker stored since {format_instant(since)}" if since else "that the broker still has"
    return f"The next start handles all commands again {which}.\nCommands that the database has already change nothing."
