"""The search for the command that waits for a lock."""

from collections.abc import Collection, Sequence
from datetime import timedelta

from timer_service.core.intake.blocked import Blocked
from timer_service.core.values.delays import Delays
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Address, Kind, Position


class Site:
    """Deliveries of several tenants, a locked command among them, and the clock of the search."""

    def __init__(self) -> None:
        self.now = 0.0
        self.blocked = Blocked(lambda: self.now)
        self._made = 0

    def send(self, tenant: str, count: int) -> list[Delivery]:
        self._made += count
        address = Address(Kind.COMMAND, tenant, "x")
        sequences = range(self._made - count, self._made)
        return [Delivery(address, "x", "x", b"", {}, Position(1, each), 1, None, 0) for each in sequences]

    def handle(self, deliveries: Sequence[Delivery], locked: Collection[Delivery]) -> list[list[Delivery]]:
        """Handle commands as the consumer does. Return the transactions that were blocked."""
        found: list[list[Delivery]] = []
        waiting = list(deliveries)
        while waiting:
            together, groups = self.blocked.divide(waiting)
            waiting = []
            for group in filter(None, [together, *groups]):
                if any(each in locked for each in group):
                    found.append(group)
                    if self.blocked.record_blocked(group) is None:
                        waiting += group
                else:
                    self.blocked.record_handled(group)
        return found


def test_nothing_is_known() -> None:
    """All commands are handled together, if no transaction was blocked."""
    site = Site()
    commands = [*site.send("a", 3), *site.send("b", 2)]
    assert site.blocked.divide(commands) == (commands, [])


def test_other_tenants_go_on() -> None:
    """After a transaction of several tenants was blocked, each is handled apart. Those that succeed are forgotten."""
    site = Site()
    first, second = site.send("a", 10), site.send("b", 10)
    site.blocked.record_blocked([*first, *second])
    assert site.blocked.divide([*first, *second]) == ([], [first, second])
    site.blocked.record_handled(second)
    assert site.blocked.divide([*first, *second]) == (second, [first])


def test_the_search_takes_few_steps() -> None:
    """One locked command among 1,000 commands of ten tenants is found in four blocked transactions."""
    site = Site()
    commands = [each for number in range(10) for each in site.send(f"tenant-{number}", 100)]
    locked = commands[555]
    blocked = site.handle(commands, [locked])
    assert [len(group) for group in blocked] == [1000, 100, 12, 1]
    assert blocked[-1] == [locked]


def test_a_locked_command_stays_alone() -> None:
    """A command that was blocked alone comes apart again, and the others of its tenant are not held up by it."""
    site = Site()
    commands = site.send("a", 1000)
    site.handle(commands, commands[:1])
    site.now += 120
    _, groups = site.blocked.divide([*commands[:1], *site.send("a", 1000)])
    assert groups == [commands[:1]]
    site.blocked.record_handled(commands[:1])
    assert site.blocked.divide(commands[:1]) == (commands[:1], [])


def test_transactions_of_few_commands_grow_again() -> None:
    """After a transaction with very few commands was blocked, each is handled alone, and then the groups grow."""
    site = Site()
    commands = site.send("a", 5)
    site.blocked.record_blocked(commands)
    sizes = []
    for _ in range(3):
        _, groups = site.blocked.divide(commands)
        sizes.append(len(groups[0]))
        site.blocked.record_handled(groups[0])
    assert sizes == [1, 2, 4]


def test_transactions_grow_again() -> None:
    """While the transactions of a tenant succeed, each has twice as many commands as the one before."""
    site = Site()
    commands = site.send("a", 64)
    for size in (64, 8):
        site.blocked.record_blocked(commands[:size])
    sizes = []
    for _ in range(4):
        _, groups = site.blocked.divide(commands)
        sizes.append(len(groups[0]))
        site.blocked.record_handled(groups[0])
    assert sizes == [1, 2, 4, 8]


def test_a_tenant_is_watched_for_a_minute() -> None:
    """A minute after its last blocked transaction, a tenant is handled together with the others."""
    site = Site()
    commands = site.send("a", 64)
    site.blocked.record_blocked(commands)
    site.now = 59.0
    before = site.blocked.divide(commands)[0]
    site.now = 61.0
    assert (before, site.blocked.divide(commands)[0]) == ([], commands)


def test_delays() -> None:
    """The delays grow from a second to a minute, and start again after a success."""
    delays = Delays()
    grown = [delays.next("a") // timedelta(seconds=1) for _ in range(8)]
    other = delays.next("b")
    delays.forget("a")
    assert grown == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (other, delays.next("a")) == (timedelta(seconds=1), timedelta(seconds=1))


def test_delays_are_bounded() -> None:
    """The oldest things are forgotten."""
    delays = Delays()
    for number in range(20_001):
        delays.next(number)
    assert [number in delays for number in (0, 1, 20_000)] == [False, True, True]
