import pytest

from timer_service.core.due.blame import Blame, Evidence, blame
from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseBusyError,
    DatabaseSetupError,
    DatabaseUnavailableError,
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (DatabaseSetupError("no such table"), Blame.SETUP),
        (DatabaseBusyError("all in use"), Blame.BUSY),
        (DatabaseBlockedError("lock timeout"), Blame.BLOCKED),
        (DatabaseUnavailableError("gone"), Blame.OUTAGE),
        (ConflictError("deadlock"), Blame.CONFLICT),
        (KeyError("a bug"), Blame.COMMAND),
        (ValueError("out of range"), Blame.COMMAND),
    ],
)
def test_blame(error: Exception, cause: Blame) -> None:
    """Only errors that are not known to come from the environment count against a command."""
    assert blame(error) is cause


def test_evidence() -> None:
    """Two commands of a handler are evidence. One that was given up is none any more, and success ends all of it."""
    evidence = Evidence()
    evidence.record([], [("timers", 1)])
    evidence.record([], [("timers", 1)])
    assert not evidence.is_environment("timers")
    evidence.record([], [("timers", 2), ("runs", 1)])
    assert (evidence.is_environment("timers"), evidence.is_environment("runs")) == (True, False)
    evidence.forget("timers", 1)
    assert not evidence.is_environment("timers")
    evidence.record([], [("timers", 3)])
    assert evidence.is_environment("timers")
    evidence.record(["timers"], [])
    assert not evidence.is_environment("timers")
