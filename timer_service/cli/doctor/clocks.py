"""Differences between the clocks of this machine, the broker and the database."""

from datetime import timedelta

from timer_service.cli.doctor.finding import Finding, Status

_TOLERATED = timedelta(seconds=1)


def check_broker_clock(skew: timedelta, uncertainty: timedelta, *, decides: bool) -> Finding:
    """Check how far this machine's clock is ahead of the broker's. `decides`: timers fire by this machine's clock."""
    text = _skew_text(skew, "the broker's")
    if abs(skew) - uncertainty <= _TOLERATED:
        return Finding("clock", Status.OK, f"{text}{_uncertainty_text(uncertainty)}")
    if decides:
        remedy = "Synchronize both machines (NTP). The clock of the service decides when timers fire."
        return Finding("clock", Status.WARN, text, remedy)
    remedy = "Synchronize both machines (NTP) to have correct times in logs. Timers fire by the clock of the database."
    return Finding("clock", Status.NOTE, text, remedy)


def check_database_clock(skew: timedelta, uncertainty: timedelta) -> Finding:
    """Check how far this machine's clock is ahead of the database's. Timers fire by the clock of the database."""
    text = _skew_text(skew, "the database's, which decides when timers fire")
    if abs(skew) - uncertainty <= _TOLERATED:
        return Finding("database clock", Status.OK, f"{text}{_uncertainty_text(uncertainty)}")
    remedy = "Timers are not affected. Synchronize both machines (NTP) to have correct times in logs."
    return Finding("database clock", Status.NOTE, text, remedy)


def _skew_text(skew: timedelta, other: str) -> str:
    return f"this clock is {abs(skew).total_seconds():.3f} s {'ahead of' if skew > timedelta() else 'behind'} {other}"


def _uncertainty_text(uncertainty: timedelta) -> str:
    return f" (± {uncertainty.total_seconds():.3f} s)"
