"""By how much this machine's clock differs from another's."""

from datetime import timedelta

from timer_service.cli.doctor.finding import Finding, Status

_TOLERATED = timedelta(seconds=1)


def check_broker_clock(skew: timedelta, uncertainty: timedelta, *, decides: bool) -> Finding:
    """Judge by how much this machine's clock is ahead of the broker's; `decides`: when timers fire is up to it."""
    text = _told(skew, "the broker's")
    if abs(skew) - uncertainty <= _TOLERATED:
        return Finding("clock", Status.OK, f"{text}{_about(uncertainty)}")
    if decides:
        remedy = "Synchronize both machines (NTP). The service's clock decides when timers fire."
        return Finding("clock", Status.WARN, text, remedy)
    remedy = "Synchronize both machines (NTP) for the sake of logs. The database's clock decides when timers fire."
    return Finding("clock", Status.NOTE, text, remedy)


def check_database_clock(skew: timedelta, uncertainty: timedelta) -> Finding:
    """Judge by how much this machine's clock is ahead of the database's, which decides when timers fire."""
    text = _told(skew, "the database's, which decides when timers fire")
    if abs(skew) - uncertainty <= _TOLERATED:
        return Finding("database clock", Status.OK, f"{text}{_about(uncertainty)}")
    remedy = "Timers are none the worse for it. Synchronize both machines (NTP) for the sake of logs."
    return Finding("database clock", Status.NOTE, text, remedy)


def _told(skew: timedelta, other: str) -> str:
    return f"this clock is {abs(skew).total_seconds():.3f} s {'ahead of' if skew > timedelta() else 'behind'} {other}"


def _about(uncertainty: timedelta) -> str:
    return f" (± {uncertainty.total_seconds():.3f} s)"
