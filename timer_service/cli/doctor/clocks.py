"""Differences between the clocks of this machine, the broker and the database."""

from datetime import timedelta

from timer_service.cli.doctor.finding import Finding, Skew, Status

_TOLERATED = timedelta(seconds=1)
_DUE_IN = "Timers with dueIn count from the broker's clock: if it is behind, they are early by as much."


def check_broker_clock(skew: Skew, *, decides: bool) -> Finding:
    """Check how far this machine's clock is ahead of the broker's. `decides`: timers fire by this machine's clock."""
    text = _skew_text(skew, "this clock", "the broker's")
    if _is_small(skew):
        return Finding("clock", Status.OK, f"{text}{_uncertainty_text(skew)}", skew=skew)
    if decides:
        remedy = f"Synchronize both machines (NTP). Timers fire by the clock of the service. {_DUE_IN}"
        return Finding("clock", Status.WARN, text, remedy, skew)
    remedy = "Synchronize both machines (NTP) to have correct times in logs. Timers fire by the clock of the database."
    return Finding("clock", Status.NOTE, text, remedy, skew)


def check_database_clock(skew: Skew) -> Finding:
    """Check how far this machine's clock is ahead of the database's. Timers fire by the clock of the database."""
    text = _skew_text(skew, "this clock", "the database's, which decides when timers fire")
    if _is_small(skew):
        return Finding("database clock", Status.OK, f"{text}{_uncertainty_text(skew)}", skew=skew)
    remedy = "Timers are not affected. Synchronize both machines (NTP) to have correct times in logs."
    return Finding("database clock", Status.NOTE, text, remedy, skew)


def check_clocks(broker: Skew, database: Skew) -> Finding:
    """Check how far the database's clock, by which timers fire, is ahead of the broker's, from which `dueIn` counts."""
    skew = Skew(broker.value - database.value, broker.uncertainty + database.uncertainty)
    text = _skew_text(skew, "the database's clock", "the broker's")
    if _is_small(skew):
        return Finding("clocks", Status.OK, f"{text}{_uncertainty_text(skew)}")
    return Finding("clocks", Status.WARN, text, f"Synchronize both machines (NTP). {_DUE_IN}")


def _is_small(skew: Skew) -> bool:
    return abs(skew.value) - skew.uncertainty <= _TOLERATED


def _skew_text(skew: Skew, this: str, other: str) -> str:
    relation = "ahead of" if skew.value > timedelta() else "behind"
    return f"{this} is {abs(skew.value).total_seconds():.3f} s {relation} {other}"


def _uncertainty_text(skew: Skew) -> str:
    return f" (± {skew.uncertainty.total_seconds():.3f} s)"
