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


def test_evidence_of_a_command_that_was_given_up() -> None:
    """A command that was given up is no longer evidence."""
    evidence = Evidence()
    evidence.record([], [("timers", 1)])
    evidence.forget("timers", 1)
    evidence.record([], [("timers", 2)])
    assert not evidence.is_environment("timers")
