"""How fast the commands of each tenant are admitted."""

from tests.harness.builders import command_address, delivery
from timer_service.core.broker import Delivery
from timer_service.core.limits import Limits, TenantLimits
from timer_service.core.message import Position
from timer_service.core.pace import Pace


def commands(tenant: str, count: int) -> list[Delivery]:
    return [delivery(address=command_address(tenant), position=Position(1, number)) for number in range(count)]


def pace(now: list[float], **rates: float) -> Pace:
    tenants = {tenant: Limits(commands_per_second=rate) for tenant, rate in rates.items()}
    return Pace(TenantLimits(tenants=tenants), lambda: now[0])


def test_a_flood_is_admitted_at_its_rate() -> None:
    """A quiet tenant may use one second at once, and after that its rate. Nothing is lost."""
    now = [100.0]
    found = pace(now, acme=10)
    late = commands("acme", 100)
    admitted: list[int] = []
    for _ in range(10):
        ready, late = found.divide(late)
        admitted.append(len(ready))
        now[0] += 0.5
    assert admitted == [11, 5, 5, 5, 5, 5, 5, 5, 5, 5]
    assert [each.position.sequence for each in late] == list(range(56, 100))


def test_other_tenants_are_not_held_up() -> None:
    """The commands of each tenant are admitted by its own rate, in their order."""
    now = [100.0]
    found = pace(now, acme=1, globex=2)
    batch = [each for pair in zip(commands("acme", 9), commands("globex", 9), strict=True) for each in pair]
    ready, late = found.divide([*batch, *commands("initech", 500)])
    assert [sum(each.address.tenant == tenant for each in ready) for tenant in ("acme", "globex", "initech")] == [
        2,
        3,
        500,
    ]
    assert len(late) == 13


def test_how_long_nothing_is_admitted() -> None:
    """The pause lasts until the first command may be handled, and at most 50 ms: other tenants may send commands."""
    now = [100.0]
    found = pace(now, slow=1, fast=100)
    _, late = found.divide([*commands("slow", 9), *commands("fast", 999)])
    seconds = found.wait_seconds(late)
    assert 0 < seconds <= 0.01
    assert found.wait_seconds([each for each in late if each.address.tenant == "slow"]) == 0.05
    now[0] += seconds
    ready, _ = found.divide(late)
    assert [each.address.tenant for each in ready] == ["fast"]


def test_quiet_tenants_are_forgotten() -> None:
    """The memory does not grow with the tenants of the past."""
    now = [100.0]
    found = pace(now)
    for number in range(20_002):
        found.divide(commands(f"tenant-{number}", 1))
        now[0] += 0.01
    assert len(found._paid_until) < 10_002
