"""Refused queries of each tenant."""

from timer_service.core.requests.refusals import MOST_REFUSALS, Refusals


def test_a_tenant_has_too_many_refusals_until_the_second_ends() -> None:
    """After 100 refused queries, those of the same tenant are refused unread. Other tenants are not concerned."""
    now = [5.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(MOST_REFUSALS - 1):
        refusals.record("a")
    assert not refusals.too_many("a")
    refusals.record("a")
    now[0] = 5.99
    assert (refusals.too_many("a"), refusals.too_many("b")) == (True, False)
    now[0] = 6.0
    assert not refusals.too_many("a")


def test_refusals_of_different_seconds_do_not_add_up() -> None:
    """A tenant with a few refusals in each second is never refused unread."""
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for second in range(10):
        now[0] = float(second)
        for _ in range(MOST_REFUSALS - 1):
            refusals.record("a")
        assert not refusals.too_many("a")


def test_refusals_of_a_later_second() -> None:
    """Refusals are counted in each second, not only in the first one."""
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    found = []
    for second in (1, 2, 7):
        now[0] = float(second)
        for _ in range(MOST_REFUSALS):
            refusals.record("a")
        found.append(refusals.too_many("a"))
    assert found == [True, True, True]
