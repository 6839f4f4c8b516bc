"""Commands that were read ahead: what is taken, what is dropped, and what stays."""

import pytest

from tests.harness.builders import command_address, delivery
from timer_service.adapters.nats.read_ahead import ReadAhead, reads_at_once
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position


def command(sequence: int, tenant: str = "acme") -> Delivery:
    return delivery(address=command_address(tenant), position=Position(1, sequence))


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [each.position.sequence for each in deliveries]


def test_commands_of_a_tenant_that_waits_stay() -> None:
    """Commands of a tenant that has commands put back are handed out after these. None of them is lost."""
    read = ReadAhead(batch_bytes=100_000)
    for number, tenant in enumerate(("acme", "globex", "acme", "initech"), 1):
        read.append(command(number, tenant))
    first = read.take(10, after=0, waits=lambda tenant: tenant == "acme")
    assert (sequences(first), bool(read)) == ([2, 4], True)
    assert sequences(read.take(10, after=0, waits=lambda _: False)) == [1, 3]
    assert not read


def test_delivered_commands_are_dropped() -> None:
    """Commands that the consumer has delivered meanwhile are not handed out again."""
    read = ReadAhead(batch_bytes=100_000)
    for number in (1, 2, 3):
        read.append(command(number))
    assert sequences(read.take(1, after=1, waits=lambda _: False)) == [2]
    assert sequences(read.take(1, after=1, waits=lambda _: False)) == [3]


def test_room() -> None:
    """There is room until the commands have the bytes of a batch, and again when they are taken or dropped."""
    read = ReadAhead(batch_bytes=20)
    found = [read.has_room]
    for end in ("take", "clear"):
        for number in (1, 2):
            each = command(number)
            each.size = 10
            read.append(each)
            found.append(read.has_room)
        if end == "take":
            read.take(10, after=0, waits=lambda _: False)
        else:
            read.clear()
        found.append(read.has_room)
    assert found == [True, True, False, True, True, False, True]


@pytest.mark.parametrize(
    ("largest_body", "reads"), [(1, 8), (1024 * 1024, 8), (2 * 1024 * 1024, 4), (64 * 1024 * 1024, 1)]
)
def test_reads_at_once(largest_body: int, reads: int) -> None:
    """At most eight commands are read at once, fewer if they may be large, and at least one."""
    assert reads_at_once(largest_body) == reads
