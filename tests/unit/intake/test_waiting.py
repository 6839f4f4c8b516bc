"""What the reader knows of the waiting commands. `tests/ports/test_intake.py` has their rows."""

import pytest

from timer_service.core.intake.waiting import Waiting

NOW = 1000
MANY = 10**9


@pytest.fixture
def waiting() -> Waiting:
    """Return what is known of three tenants. The second one must not be tried before 2000."""
    waiting = Waiting()
    for tenant, number, size, available_at in (("a", 2, 10, NOW), ("b", 3, 20, 2 * NOW), ("c", 1, 40, NOW)):
        waiting.added(tenant, number, size)
        waiting.postponed(tenant, available_at)
    return waiting


@pytest.mark.parametrize(
    ("now", "limit", "most_bytes", "tenants"),
    [
        (0, MANY, MANY, []),
        (NOW, MANY, MANY, ["a", "c"]),
        (2 * NOW, MANY, MANY, ["a", "b", "c"]),
        (2 * NOW, 2, MANY, ["a"]),
        (2 * NOW, 3, MANY, ["a", "b"]),
        (2 * NOW, MANY, 5, ["a"]),
        (2 * NOW, MANY, 11, ["a", "b"]),
    ],
)
def test_whose_turn_it_is(waiting: Waiting, now: int, limit: int, most_bytes: int, tenants: list[str]) -> None:
    """These are the tenants whose time has come, until they have enough commands or bytes; at least one."""
    assert waiting.next_tenants(now, limit, most_bytes) == tenants
    assert waiting.has_ready(now) == bool(tenants)


def test_what_is_known(waiting: Waiting) -> None:
    """A tenant is known until all its commands are applied. The numbers and bytes of all tenants are known."""
    assert (list(waiting.tenants), waiting.number, waiting.size, waiting.next_at()) == (["a", "b", "c"], 6, 70, NOW)
    waiting.applied("a", 1, 0)
    waiting.applied("c", 1, 40)
    assert (list(waiting.tenants), waiting.number, waiting.size) == (["a", "b"], 4, 30)
    waiting.applied("a", 1, 10)
    assert ("a" in waiting.tenants, waiting.number, waiting.size, waiting.next_at()) == (False, 3, 20, 2 * NOW)
    waiting.applied("b", 3, 20)
    assert (len(waiting.tenants), waiting.number, waiting.size, waiting.next_at()) == (0, 0, 0, None)


def test_a_tenant_that_is_postponed(waiting: Waiting) -> None:
    """A postponed tenant has no turn before its time, also if it gets more commands. A success ends that."""
    waiting.postponed("a", 5 * NOW)
    waiting.added("a", 1, 1)
    found = [waiting.next_tenants(4 * NOW, MANY, MANY), waiting.next_tenants(5 * NOW, MANY, MANY)]
    waiting.applied("a", 1, 0)
    assert [*found, waiting.next_tenants(NOW, MANY, MANY)] == [["b", "c"], ["a", "b", "c"], ["a", "c"]]


def test_a_clock_that_was_set_back(waiting: Waiting) -> None:
    """A tenant that was postponed while the clock was ahead has its turn: no delay is longer than a minute."""
    for now, tenants in ((2 * NOW - 65_000, []), (2 * NOW - 65_001, ["b"])):
        assert (waiting.next_tenants(now, MANY, MANY), waiting.has_ready(now)) == (tenants, bool(tenants))


def test_retry_all(waiting: Waiting) -> None:
    """When what made commands fail is over, all tenants have their turn at once."""
    waiting.retry_all()
    assert waiting.next_tenants(0, MANY, MANY) == ["a", "b", "c"]


def test_end_of_a_turn(waiting: Waiting) -> None:
    """Tenants that have had their turn come behind the others. One without waiting commands is no tenant any more."""
    waiting.end_turn(["a", "gone"])
    assert list(waiting.tenants) == ["b", "c", "a"]
