"""What becomes of commands that fail alone."""

from collections.abc import Sequence

import pytest

from tests.harness.builders import raw_command
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.intake.trouble import Trouble
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY, OutageLog
from timer_service.core.values.errors import DatabaseBusyError, DatabaseSetupError, DatabaseUnavailableError
from timer_service.core.values.message import Command, Position, Trace
from timer_service.timers.messages import CancelTimer, RetryTimer

BUG = KeyError("a bug")


async def handle(_tx: Transaction, _commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
    raise NotImplementedError


async def wake(_at: int, _loop: str | None) -> None:
    """Wake no loop."""


ROUTE, OTHER = (Route((payload,), handle, wake) for payload in (CancelTimer, RetryTimer))


@pytest.fixture
def trouble() -> Trouble:
    return Trouble(OutageLog())


def fail(trouble: Trouble, sequence: int, attempt: int, of: Route = ROUTE) -> bool:
    """Let a command fail alone. Return whether it is given up."""
    payload = CancelTimer(tenant_id="acme", service_call_id="call-1")
    command = Command(f"command-{sequence}", payload, Position(1, sequence), None, Trace(), None)
    return trouble.record_failure(of, command, BUG, attempt)


def test_a_command_that_fails_twice(trouble: Trouble) -> None:
    """A command is given up when it has failed twice."""
    found = [fail(trouble, 1, 1), fail(trouble, 1, 2)]
    assert (found, trouble.stopped, trouble.health) == ([False, True], frozenset(), HEALTHY)


def test_a_command_that_fails_after_another_one(trouble: Trouble) -> None:
    """A command was given up, and the next one fails: every command may fail now, also if only one tenant sends any."""
    found = [fail(trouble, 1, 1), fail(trouble, 1, 2), fail(trouble, 2, 1), fail(trouble, 2, 2)]
    assert (found, set(trouble.stopped)) == ([False, True, False, False], {"cancel-timer"})


def test_every_command_is_blocked(trouble: Trouble) -> None:
    """One locked row is no fault of the database. If two commands wait for locks and none works, the health says so."""
    trouble.record_blocked(raw_command(position=Position(1, 1)), BUG)
    one = trouble.health
    trouble.record_blocked(raw_command(position=Position(1, 2)), BUG)
    assert (one, trouble.stopped) == (HEALTHY, frozenset())
    trouble.record_applied([])  # only rejected commands
    assert "every command waits for a lock" in (trouble.health.reason or "")
    trouble.record_applied([ROUTE])
    assert trouble.health == HEALTHY


def test_a_handler_that_fails_for_every_command(trouble: Trouble) -> None:
    """If two commands of a handler have failed and none has worked, its commands are tried up to 100 times."""
    found = [fail(trouble, 1, 1), fail(trouble, 2, 1), fail(trouble, 1, 2), fail(trouble, 1, 99)]
    assert (found, set(trouble.stopped)) == ([False] * 4, {"cancel-timer"})
    assert "every command fails: KeyError" in (trouble.health.reason or "")
    assert fail(trouble, 1, 100)


def test_a_handler_that_works_again(trouble: Trouble) -> None:
    """When a handler works again, its messages are not stopped any more, and its failures begin to count at none."""
    for of in (ROUTE, OTHER):
        fail(trouble, 1, 1, of)
        fail(trouble, 2, 1, of)
    before = set(trouble.stopped)
    again = [trouble.record_applied([ROUTE]), trouble.record_applied([ROUTE])]
    assert (before, again, set(trouble.stopped)) == ({"cancel-timer", "retry-timer"}, [True, False], {"retry-timer"})
    assert fail(trouble, 1, 2)


def test_delays(trouble: Trouble) -> None:
    """The delay of a command grows from 1 s to 1 min with its attempts. That of another one begins at 1 s."""
    first, second = Position(1, 1), Position(1, 2)
    delays = [trouble.delay(first) for _ in range(8)]
    assert [*delays, trouble.delay(second)] == [*(1000 * 2**power for power in range(6)), 60_000, 60_000, 1000]


def test_outages(trouble: Trouble) -> None:
    """The health names why nothing is applied, also if the database seems to work: a small write may succeed."""
    for error in (DatabaseUnavailableError("disk is full"), DatabaseBusyError("busy"), DatabaseSetupError("no table")):
        trouble.record_outage(error)
        assert trouble.health.reason == f"commands cannot be handled: {error}"
