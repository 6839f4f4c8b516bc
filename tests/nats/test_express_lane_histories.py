"""Random histories of a stay and its express lane: whatever happens in which order, no command is left out."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

from hypothesis import given
from hypothesis import strategies as st

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.headers import RawHeaders
from timer_service.adapters.nats.stay import Handle, Stay
from timer_service.adapters.nats.stored import Receipt, StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs, Part
from timer_service.core.values.delivery import Delivery

TENANTS = "abc"
LIMIT = 3
SOON = timedelta(0)


SIZES = (1, 600, 70_000)
"""The sizes of commands: small ones, those that do not fit into a batch with others, and those that cannot overtake."""


class Stored(NamedTuple):
    """A command of the stream. No two commands have the same instant, not even in different streams."""

    tenant: str
    sequence: int
    stored_at: int
    size: int

    @property
    def subject(self) -> str:
        return f"timer.cmd.v1.{self.tenant}.schedule-timer"


class Stream:
    """A stream and its consumer, which the express lane reads from. Each read takes a turn of the event loop."""

    largest_body = 1024

    def __init__(self) -> None:
        self.commands: list[Stored] = []
        self.delivered = 0
        self.unsettled: set[int] = set()
        self.returned: list[int] = []
        """The sequences that are delivered again before others."""
        self.deliveries = 0

    async def read(self, sequence: int, subject: str) -> dict[str, Any] | None:
        tenant = subject.split(".")[3]
        await asyncio.sleep(0)
        found = next((each for each in self.commands if each.sequence >= sequence and each.tenant == tenant), None)
        if found is None:
            return None
        return {"seq": found.sequence, "subject": found.subject, "time": f"1970-01-01T00:00:00.{found.stored_at:09d}Z"}

    async def subjects(self, _pattern: str) -> None:
        """List nothing: the histories choose themselves for which tenants to look."""
        raise OSError

    def deliver(self) -> StoredMessage | None:
        """Deliver a command that was returned, or else the next one."""
        if self.returned:
            sequence = self.returned.pop(0)
        elif self.delivered < len(self.commands):
            sequence = self.delivered = self.delivered + 1
        else:
            return None
        self.unsettled.add(sequence)
        self.deliveries += 1
        command = self.commands[sequence - 1]
        receipt = Receipt(1, sequence, self.deliveries, command.stored_at, len(self.commands) - self.delivered)
        return StoredMessage(command.subject, b"", RawHeaders(b""), receipt, str(sequence), command.size)


class Site:
    """A stream, a stay in it, and a caller that handles commands as the consumer of the core does."""

    def __init__(self) -> None:
        self.clock = 0
        self.number = 0
        self.handled: set[int] = set()
        """When the handled commands were stored."""
        self.order: list[tuple[str, int]] = []
        """The tenants of the handled commands, and when these were stored, in the order of the handling."""
        self.in_hand: list[Delivery] = []
        self.round: asyncio.Task[None] | None = None
        self.stay: Stay
        self.replace_stream()

    def replace_stream(self) -> None:
        """Begin another stream and another stay. Commands of the last one may still be in hand."""
        if self.number:
            self.stay.lane.close()
        self.number += 1
        self.stream = Stream()
        epochs = Epochs((Part(self.number, f"stream {self.number}", 1, 0, 0),))
        consumer = cast("DurableConsumer", self.stream)
        options: dict[str, Any] = {"messages": ["schedule-timer"], "batch_bytes": 1000, "ready": asyncio.Event()}
        self.stay = Stay(self.number, epochs, consumer, Subjects("timer"), **options)
        self.stay.lane.hold(3600)

    async def do(self, operation: str, number: int) -> None:
        """Do one step."""
        await asyncio.sleep(0)
        match operation:
            case "publish":
                self.publish(number)
            case "deliver" if (message := self.stream.deliver()) is not None:
                self.stay.buffer.append(message)
            case "round" if self.round is None or self.round.done():
                tenants = TENANTS[number % len(TENANTS) :]
                self.round = asyncio.create_task(self.stay.lane._read_tenants(tenants))
            case "take":
                self.in_hand += self.stay.take_ahead(LIMIT) or self.take()
            case "handle" | "retry" | "put back":
                part = self.in_hand[: number % LIMIT + 1]
                del self.in_hand[: len(part)]
                self.settle(operation, part)
            case "replace" if number < 2:
                self.replace_stream()
                for each in range(LIMIT):
                    self.publish(number + each)

    def publish(self, number: int) -> None:
        self.clock += 1
        tenant = TENANTS[number % len(TENANTS)]
        size = SIZES[(number + self.clock) % len(SIZES)]
        self.stream.commands.append(Stored(tenant, len(self.stream.commands) + 1, self.clock, size))

    def take(self) -> list[Delivery]:
        batch, done = self.stay.take(LIMIT)
        self.acknowledge(done)
        return batch

    def settle(self, operation: str, deliveries: Sequence[Delivery]) -> None:
        match operation:
            case "handle":
                self.handled.update(delivery.stored_at for delivery in deliveries)
                self.order += [(delivery.address.tenant, delivery.stored_at) for delivery in deliveries]
                self.stay.record_handled(deliveries)
                self.acknowledge(deliveries)
            case "retry":
                self.stay.retry(deliveries, SOON)
                self.stream.returned += [each.position.sequence for each in self.valid(deliveries)]
            case "put back":
                self.stay.put_back(deliveries)

    def valid(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that the subscription settles at the server."""
        return [each for each in deliveries if isinstance(each.handle, Handle) and each.handle.stay == self.number]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in self.valid(deliveries):
            self.stream.unsettled.discard(delivery.position.sequence)

    async def finish(self) -> None:
        """Handle everything that the consumer still delivers, and what the last process would find unsettled."""
        while self.in_hand:
            await self.do("handle", LIMIT - 1)
        for _ in range(2):
            while (message := self.stream.deliver()) is not None:
                self.stay.buffer.append(message)
            while self.stay.has_commands:
                self.settle("handle", self.stay.take_ahead(LIMIT) or self.take())
            self.stream.returned = sorted(self.stream.unsettled)
        if self.round is not None:
            await self.round


AHEAD = ("publish", "publish", "round", "round", "take", "handle", "retry", "put back")
ALL = (*AHEAD, "deliver", "deliver", "take", "handle", "replace")


def histories(*steps: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Return random histories of these steps."""
    return st.lists(st.tuples(st.sampled_from(steps), st.integers(0, 5)), min_size=40, max_size=80)


@given(histories(*ALL))
async def test_no_command_is_hidden(steps: list[tuple[str, int]]) -> None:
    """Each command of the newest stream is handled, and settled in the end, whatever was read ahead and when."""
    site = Site()
    for operation, number in steps:
        await site.do(operation, number)
    await site.finish()
    assert {each.stored_at for each in site.stream.commands} <= site.handled
    assert site.stream.unsettled == set()


ORDERED = ("publish", "publish", "deliver", "deliver", "round", "take", "take")
"""The steps without retries."""


@given(histories(*ORDERED))
async def test_commands_are_handled_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    """If none is retried, the commands of each tenant are handled once and in their order, whatever overtakes them."""
    site = Site()
    for operation, number in steps:
        await site.do(operation, number)
        if operation == "take":  # the next batch is taken when this one is settled
            await site.do("handle", number)
            await site.do("put back", LIMIT - 1)
    await site.finish()
    for tenant in TENANTS:
        handled = [at for owner, at in site.order if owner == tenant]
        assert handled == sorted(set(handled))


def overtaken(site: Site, ahead: Delivery, handed_out: set[int]) -> list[int]:
    """Return the earlier commands of a tenant that were neither delivered by the consumer nor handled."""
    earlier = site.stream.commands[: ahead.position.sequence - 1]
    waiting = [each for each in earlier if each.tenant == ahead.address.tenant and each.stored_at not in site.handled]
    return [each.sequence for each in waiting if each.sequence not in handed_out]


@given(histories(*AHEAD))
async def test_commands_of_a_tenant_are_read_ahead_in_order(steps: list[tuple[str, int]]) -> None:
    """A command that is read ahead overtakes no earlier command of its tenant, also if that one is retried."""
    site = Site()
    for operation, number in [("publish", 0), ("publish", 0), *steps]:
        if operation != "take":
            await site.do(operation, number)
            continue
        handed_out = {each.position.sequence for each in (*site.in_hand, *site.stay.returned.deliveries)}
        for delivery in (batch := site.stay.take_ahead(LIMIT)):
            assert overtaken(site, delivery, handed_out) == []
            handed_out.add(delivery.position.sequence)
        site.in_hand += batch


async def test_a_second_retry_after_the_first_command_was_read_again() -> None:
    """Of two commands of a tenant, the first fails and is read again before the second fails, too. It stays first."""
    site = Site()
    for _ in range(2):
        await site.do("publish", 0)
    await site.stay.lane._read_tenants("a")
    first, second = site.stay.take_ahead(LIMIT)
    site.settle("retry", [first])
    await site.stay.lane._read_tenants("a")
    site.settle("retry", [second])
    await site.stay.lane._read_tenants("a")
    assert [each.position.sequence for each in site.stay.take_ahead(LIMIT)] == [1, 2]


async def test_a_retry_while_the_next_command_is_read() -> None:
    """If a command fails while the next one of its tenant is being read, both are read again, in their order."""
    site = Site()
    for _ in range(3):
        await site.do("publish", 0)
    reading = asyncio.create_task(site.stay.lane._read_tenants("a"))
    while not (first := site.stay.take_ahead(LIMIT)):
        await asyncio.sleep(0)
    site.settle("retry", first)
    await reading
    await site.stay.lane._read_tenants("a")
    assert [each.position.sequence for each in (*first, *site.stay.take_ahead(LIMIT))] == [1, 1, 2, 3]


async def test_a_command_that_was_handled_is_not_read_again_with_a_failed_one() -> None:
    """Of three commands of a tenant, the first fails, and the second is handled. The second does not come again."""
    site = Site()
    for _ in range(3):
        await site.do("publish", 0)
    await site.stay.lane._read_tenants("a")
    first, second, third = site.stay.take_ahead(LIMIT)
    site.settle("handle", [second])
    site.settle("retry", [first, third])
    await site.stay.lane._read_tenants("a")
    assert [each.position.sequence for each in site.stay.take_ahead(LIMIT)] == [1, 3]
