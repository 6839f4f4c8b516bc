"""The division of a pass that met locks."""

import pytest

from timer_service.schedules.firing.locked_parts import LockedParts
from timer_service.schedules.schedule import Key


def keys(tenant: str, count: int) -> list[Key]:
    return [Key(tenant, f"s-{number:04}") for number in range(count)]


def divide(parts: LockedParts, locked: set[Key]) -> tuple[int, list[Key]]:
    """Try all parts. Return how many tries met a lock, and the schedules that fired."""
    tries = 0
    fired: list[Key] = []
    while (part := parts.take()) is not None:
        if locked.isdisjoint(part):
            fired += part
        else:
            tries += 1
            parts.divide(part)
    return tries, fired


@pytest.mark.parametrize("position", [0, 1, 499, 999])
def test_one_locked_schedule(position: int) -> None:
    """Of 1,000 schedules, one locked one is alone after three tries. All others fire, each once."""
    everything = keys("acme", 1000)
    parts = LockedParts(everything)
    tries, fired = divide(parts, {everything[position]})
    assert (tries, parts.locked) == (3, [everything[position]])
    assert sorted([*fired, *parts.locked]) == everything


def test_a_tenant_with_many_locked_schedules() -> None:
    """After three locked schedules, the rest of a tenant is given up. All schedules of others fire."""
    mine, others = keys("acme", 500), keys("other", 500)
    parts = LockedParts([*mine, *others])
    tries, fired = divide(parts, set(mine))
    assert sorted(fired) == others
    assert sorted(parts.locked) == mine
    assert tries < 10


def test_a_few_locked_schedules_of_each_tenant() -> None:
    """Two locked schedules do not keep the others of their tenant waiting."""
    everything = [key for tenant in ("a", "b", "c") for key in keys(tenant, 100)]
    locked = {key for key in everything if key.schedule_id in {"s-0010", "s-0090"}}
    parts = LockedParts(everything)
    _, fired = divide(parts, locked)
    assert sorted(fired) == sorted(set(everything) - locked)


def test_the_time_in_locks() -> None:
    """Only the tries that met a lock count."""
    clock = iter([0.0, 1.0, 1.5, 2.0, 3.0]).__next__
    parts = LockedParts(keys("acme", 2), clock)
    (first,) = parts.take() or ()
    parts.divide([first])
    assert parts.take() is not None
    assert (parts.seconds, parts.locked) == (0.5, [first])


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99])
def test_every_schedule_is_in_one_part(count: int) -> None:
    """However many there are."""
    parts = LockedParts(keys("acme", count))
    _, fired = divide(parts, set())
    assert sorted(fired) == keys("acme", count)


def test_the_tenant_that_waits_longest_comes_first() -> None:
    """The schedules of a tenant are together, in the order of the one that became due first."""
    first, second = keys("other", 2), keys("acme", 2)
    parts = LockedParts([first[1], second[0], first[0], second[1]])
    assert [parts.take() for _ in range(4)] == [[each] for each in (first[1], first[0], *second)]
