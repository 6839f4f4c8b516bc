"""What the express lane reads of a scripted stream: failures, bytes, and how many requests it sends."""

import asyncio
import itertools
import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import pytest
from nats.js.errors import Error as JetStreamError

from tests.harness.builders import command_address, delivery
from timer_service.adapters.nats import express_lane, tenant_search
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.express_lane import ExpressLane
from timer_service.adapters.nats.listing import Listing
from timer_service.adapters.nats.returned import Returned
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs, Part
from timer_service.core.values.budget import DEFAULT_BUDGET
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position

MB = 1_000_000
BATCH_BYTES = DEFAULT_BUDGET.batch
REACHED = 1000
"""The sequence up to which the consumer has delivered commands."""


END = 10**6
"""The last sequence of the stream."""


class ScriptedStream:
    """The requests of the express lane to a stream with one command of each tenant."""

    def __init__(self, *, largest_body: int = MB) -> None:
        self.largest_body = largest_body
        self.commands: dict[str, tuple[int, bytes]] = {}
        """The sequence and the body of the command of each tenant."""
        self.fails_for: set[str] = set()
        self.listings = 0
        """How many listings were requested."""
        self.fails_to_list = False
        self.reads: list[str] = []
        """The subjects of the requests for commands."""
        self.most_bytes_at_once = 0
        self._bytes_now = 0

    async def subjects(self, _pattern: str) -> Listing:
        self.listings += 1
        if self.fails_to_list:
            raise nats.errors.TimeoutError
        numbers = {f"timer.cmd.v1.{tenant}.schedule-timer": 1 for tenant in self.commands}
        info = {"state": {"last_seq": END, "subjects": numbers}}
        return Listing(json.dumps(info, separators=(",", ":")).encode())

    async def read(self, sequence: int, subject: str) -> Mapping[str, Any] | None:
        self.reads.append(subject)
        tenant = subject.split(".")[3]
        if tenant in self.fails_for:
            raise JetStreamError
        stored, body = self.commands[tenant]
        if stored < sequence:
            return None
        self._bytes_now += len(body)
        self.most_bytes_at_once = max(self.most_bytes_at_once, self._bytes_now)
        await asyncio.sleep(0)
        self._bytes_now -= len(body)
        subject = f"timer.cmd.v1.{tenant}.schedule-timer"
        return {"seq": stored, "subject": subject, "time": "2026-01-01T00:00:00Z", "data": b64encode(body).decode()}


class Lane:
    """An express lane of a scripted stream. The consumer of the stream has a backlog."""

    def __init__(self, stream: ScriptedStream) -> None:
        self._ready = asyncio.Event()
        epochs = Epochs((Part(1, "created", 1, 0, 0),))
        consumer = cast("DurableConsumer", stream)
        self.lane = ExpressLane(
            consumer,
            Subjects("timer"),
            epochs,
            ["schedule-timer"],
            self._ready,
            batch_bytes=BATCH_BYTES,
            returned=Returned(BATCH_BYTES),
        )
        self.lane._reached = REACHED
        self._end = END
        self.lane.observe([], behind=10**9, end=END)

    async def start(self) -> None:
        self.lane.start()
        await self.until_it_rests()

    async def run_round(self, end: int | None = None) -> None:
        """Observe a batch with a backlog behind it. Wait until the lane has looked for waiting tenants.

        `end`: the last sequence of the stream; by default one more than in the last round.
        """
        self._end = self._end + 1 if end is None else end
        self.lane._next_round_at = 0.0
        if end is None:
            self.lane._search._listed_at = 0.0
        self.lane.observe([], behind=10**9, end=self._end)
        await self.until_it_rests()

    async def until_it_rests(self) -> None:
        """Wait for the work in the background."""
        async with asyncio.timeout(10):
            while (task := self.lane._task) is not None:
                await asyncio.wait([task])

    def take(self) -> list[Delivery]:
        return self.lane.take(1000)


@pytest.fixture
def stream() -> ScriptedStream:
    """Return an empty stream."""
    return ScriptedStream()


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [delivery.position.sequence for delivery in deliveries]


async def test_failures_of_single_reads(stream: ScriptedStream) -> None:
    """A failed read of one tenant does not lose the commands of others. It is tried again in the next round."""
    stream.commands = {"b": (REACHED + 9, b""), "c": (REACHED + 10, b"")}
    stream.fails_for = {"c"}
    lane = Lane(stream)
    await lane.run_round()
    found = [sequences(lane.take())]
    stream.fails_for.clear()
    await lane.run_round()
    found.append(sequences(lane.take()))
    assert found == [[REACHED + 9], [REACHED + 10]]


async def test_nothing_is_read_ahead_for_a_time(stream: ScriptedStream) -> None:
    """After a start with commands in flight, nothing is read ahead for a time: one of them may end the process."""
    stream.commands = {"b": (REACHED + 9, b"")}
    lane = Lane(stream)
    lane.lane.hold(30)
    lane.lane.observe([], behind=10**9, end=END)
    lane.lane.observe([], behind=10**9, end=END)
    assert lane.lane._task is None
    assert stream.reads == []


async def test_a_listing_does_not_end_the_hold(stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing that goes on at the start ends after the hold has begun. The hold stays as long as it was."""
    now = 1000.0
    for module in (express_lane, tenant_search):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    stream.commands = {"b": (REACHED + 9, b"")}
    lane = Lane(stream)
    lane.lane.start()
    lane.lane.hold(30)
    await lane.until_it_rests()
    reads: list[int] = []
    for seconds in (1, 28, 2):
        now += seconds
        lane.lane.observe_rest(1)
        await lane.until_it_rests()
        reads.append(len(stream.reads))
    assert reads[:2] == [0, 0]
    assert reads[2] > 0


async def test_listings_that_fail(stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a listing that failed, a growing time passes before the next one: it may have closed the connection."""
    now = 1000.0
    monkeypatch.setattr(tenant_search, "time", SimpleNamespace(monotonic=lambda: now))
    stream.fails_to_list = True
    lane = Lane(stream)
    listed_at: list[float] = []
    while now < 3000:
        before = stream.listings
        await lane.run_round()
        listed_at += [now] * (stream.listings - before)
        now += 1
    pauses = [after - before for before, after in itertools.pairwise(listed_at)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]
    stream.fails_to_list, stream.commands = False, {"b": (REACHED + 9, b"")}
    now += 300
    await lane.run_round()
    assert sequences(lane.take()) == [REACHED + 9]
    now += 1
    before = stream.listings
    await lane.run_round()
    assert stream.listings == before + 1


async def test_a_listing_that_works_ends_the_long_pauses(
    stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a listing that worked, the pauses after failures begin with the shortest one again."""
    now = 1000.0
    monkeypatch.setattr(tenant_search, "time", SimpleNamespace(monotonic=lambda: now))
    lane = Lane(stream)
    counts: list[int] = []
    for seconds, fails in ((0, True), (1, True), (2, False), (0, True), (0.9, True), (0.1, True), (1.9, False)):
        now += seconds
        stream.fails_to_list = fails
        before = stream.listings
        await lane.run_round()
        counts.append(stream.listings - before)
    assert counts == [1, 1, 1, 1, 0, 1, 0]


async def test_a_backlog_that_does_not_grow_is_listed_once_in_a_second(
    stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog is listed in each round only while commands are added to it. A new backlog is listed at once."""
    now = 1000.0
    monkeypatch.setattr(tenant_search, "time", SimpleNamespace(monotonic=lambda: now))
    lane = Lane(stream)
    counts: list[int] = []
    for end in (END, END, END, END + 1, END + 1):
        before = stream.listings
        await lane.run_round(end)
        counts.append(stream.listings - before)
        now += 0.4
    assert counts == [1, 0, 0, 1, 0]
    lane.lane.observe([], behind=0, end=END + 1)
    before = stream.listings
    lane.lane.observe([], behind=10**9, end=END + 1)
    await lane.run_round(END + 1)
    assert stream.listings == before + 1


async def test_tenants_of_a_long_backlog_are_forgotten(stream: ScriptedStream) -> None:
    """The memory of the lane does not grow with the tenants of a backlog, whatever their names are."""
    lane = Lane(stream)
    for number in range(2000):
        tenants = (f"tenant-{number}", f"{number}" * 1000)
        batch = [delivery(address=command_address(tenant), position=Position(1, number)) for tenant in tenants]
        lane.lane.observe(batch, behind=10**9, end=END)
    known = len(lane.lane._served_at)
    lane.lane._served_at = {tenant: at - 1 for tenant, at in lane.lane._served_at.items()}
    await lane.run_round()
    assert (known, lane.lane._served_at) == (2000, {})


async def test_a_retried_command_is_read_again(stream: ScriptedStream) -> None:
    """A command that could not be handled is read ahead again."""
    stream.commands = {"b": (REACHED + 9, b"")}
    lane = Lane(stream)
    await lane.run_round()
    taken = lane.take()
    lane.lane.retry(taken, timedelta(0))
    await lane.run_round()
    assert sequences(lane.take()) == sequences(taken) == [REACHED + 9]


async def test_retried_commands_keep_their_order(stream: ScriptedStream) -> None:
    """If several commands of a tenant could not be handled, they are read again from the oldest on."""
    lane = Lane(stream)
    failed = [delivery(address=command_address("b"), position=Position(1, REACHED + number)) for number in (3, 9, 6)]
    for each in failed:
        lane.lane.retry([each], timedelta(0))
    assert lane.lane._position("b") == REACHED + 2


async def test_a_tenant_that_waits_is_found_among_100_000(stream: ScriptedStream) -> None:
    """A new command is found in one round with few requests, however many tenants have handled commands."""
    stream.commands = {f"quiet-{number}": (1, b"") for number in range(100_000)}
    lane = Lane(stream)
    await lane.start()
    stream.commands["good"] = (REACHED + 9, b"")
    await lane.run_round()
    assert sequences(lane.take()) == [REACHED + 9]
    assert "good" in stream.reads[0]


async def test_tenants_that_do_not_wait_are_looked_at_once(stream: ScriptedStream) -> None:
    """In a backlog that exists at the start, one request for each tenant finds out which of them wait."""
    stream.commands = {f"quiet-{number}": (1, b"") for number in range(2000)} | {"good": (REACHED + 9, b"")}
    lane = Lane(stream)
    taken: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(set(stream.reads)) < len(stream.commands) or not taken:
            await lane.run_round()
            taken += lane.take()
    await lane.run_round()
    assert sequences(taken) == [REACHED + 9]
    assert len(stream.reads) <= len(stream.commands) + 2, "the tenant that waits is read twice more"


@pytest.mark.parametrize(("size", "most_bytes"), [(MB, 10 * MB), (8 * MB, 10 * MB)])
async def test_bytes_of_reads(size: int, most_bytes: int) -> None:
    """Many tenants with large commands: what is read, held and handed out at once is bounded in bytes."""
    stream = ScriptedStream(largest_body=size)
    body = b"x" * size  # one for all: a hundred of them have 800 MB
    stream.commands = {f"large-{number}": (REACHED + number, body) for number in range(1, 101)}
    lane = Lane(stream)
    taken: set[int] = set()
    async with asyncio.timeout(60):
        while len(taken) < 7:
            await lane.run_round()
            held = 0
            while batch := lane.take():
                assert len(batch) == 1 or sum(len(each.body) for each in batch) <= BATCH_BYTES
                held += sum(len(each.body) for each in batch)
                taken.update(sequences(batch))
            assert 0 < held <= most_bytes
    assert stream.most_bytes_at_once <= max(size, 8 * MB)


async def test_tenants_with_large_commands_take_turns_with_others(stream: ScriptedStream) -> None:
    """If many tenants always have large commands, a round reads those of some. The next one begins with the others."""
    body = b"x" * MB
    stream.commands = {f"large-{number}": (REACHED + number, body) for number in range(1, 31)}
    stream.commands["good"] = (REACHED + 31, b"")
    lane = Lane(stream)
    lane.lane._waiting = dict.fromkeys(stream.commands)
    taken: set[str] = set()
    for _ in range(4):
        await lane.run_round()
        while batch := lane.take():
            for each in batch:
                taken.add(each.address.tenant)
                stream.commands[each.address.tenant] = (each.position.sequence + 100, each.body)
    assert taken == set(stream.commands)


class EndlessStream(ScriptedStream):
    """A stream in which each tenant always has another command."""

    async def read(self, sequence: int, subject: str) -> Mapping[str, Any] | None:
        self.commands[subject.split(".")[3]] = (sequence, b"")
        return await super().read(sequence, subject)


@pytest.mark.parametrize(
    ("tenants", "limit", "rounds"),
    [(20, 1000, [200]), (20, 50, [40]), (3, 50, [30]), (60, 50, [50, 50]), (100, 1000, [1000])],
)
async def test_tenants_share_a_batch(tenants: int, limit: int, rounds: list[int]) -> None:
    """While batches are small, because commands are slow, few of each tenant are read. So all soon have a turn."""
    stream = EndlessStream()
    lane = Lane(stream)
    lane.lane._waiting = {f"tenant-{number}": None for number in range(tenants)}
    lane.lane.take(limit)
    found: list[int] = []
    taken: set[str] = set()
    while len(taken) < tenants:
        await lane.run_round()
        found.append(len(batch := lane.lane.take(limit)))
        taken.update(each.address.tenant for each in batch)
    assert found == rounds


async def test_no_round_while_a_small_batch_waits() -> None:
    """Nothing is read while a batch waits to be taken. Commands behind others that were put back do not count."""
    lane = Lane(stream := EndlessStream())
    lane.lane._waiting = {f"tenant-{number}": None for number in range(20)}
    lane.lane.take(20)
    counts: list[int] = []
    for _ in range(2):
        await lane.run_round()
        counts.append(len(stream.reads))
    lane.lane._returned.put([delivery(address=command_address("tenant-0"), position=Position(1, 1))])
    await lane.run_round()
    counts.append(len(stream.reads))
    assert counts == [20, 20, 39]


async def test_commands_behind_others_that_were_put_back_leave_room(stream: ScriptedStream) -> None:
    """A large command that must wait, behind one of its tenant that was put back, is dropped and read again later."""
    stream.commands = {"large": (REACHED + 2, b"x" * (BATCH_BYTES + 1))}
    lane = Lane(stream)
    await lane.run_round()
    lane.lane._returned.put([delivery(address=command_address("large"), position=Position(1, REACHED + 1))])
    stream.commands["good"] = (REACHED + 3, b"")
    found = []
    for _ in range(2):
        await lane.run_round()
        found.append(sequences(lane.take()))
        lane.lane._returned.take(1)
    assert found == [[REACHED + 3], [REACHED + 2]]


async def test_no_round_while_enough_waits(stream: ScriptedStream) -> None:
    """Nothing is read while a full batch waits to be taken."""
    body = b"x" * MB
    stream.commands = {f"large-{number}": (REACHED + number, body) for number in range(1, 101)}
    lane = Lane(stream)
    await lane.run_round()
    before = len(stream.reads)
    await lane.run_round()
    assert len(stream.reads) == before
    while lane.take():
        pass
    await lane.run_round()
    assert len(stream.reads) > before


async def test_no_round_while_too_many_were_handled_ahead(
    stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handled ahead is remembered, until the consumer delivers it or is far behind. So it is limited."""
    monkeypatch.setattr(express_lane, "_MOST_HANDLED_AHEAD", 2)
    monkeypatch.setattr(express_lane, "_FAR_BEHIND", 10)
    stream.commands = {"b": (REACHED + 9, b"")}
    lane = Lane(stream)
    handled = [delivery(position=Position(1, sequence)) for sequence in (REACHED - 11, REACHED - 10, REACHED - 9)]
    lane.lane.record_handled(handled[:2])
    await lane.run_round()
    before = len(stream.reads)
    lane.lane.forget_handled(REACHED - 10, 0)
    await lane.run_round()
    lane.lane.record_handled(handled[2:])
    await lane.run_round()
    assert (before, lane.lane._handled) == (0, {REACHED - 9: 0})
    assert sequences(lane.take()) == [REACHED + 9]


async def test_newest_command_that_was_read_ahead(stream: ScriptedStream) -> None:
    """The newest command is the one with the highest sequence, not the one that was read last."""
    stream.commands = {"a": (REACHED + 9, b""), "b": (REACHED + 5, b"")}
    lane = Lane(stream)
    await lane.run_round()
    assert sorted(sequences(lane.take())) == [REACHED + 5, REACHED + 9]
    assert lane.lane.newest is not None
    assert lane.lane.newest.sequence == REACHED + 9


async def test_a_closed_lane_hands_out_nothing(stream: ScriptedStream) -> None:
    """Commands that were read ahead and not handed out before the end are dropped: the consumer delivers them."""
    stream.commands = {"b": (REACHED + 9, b"")}
    lane = Lane(stream)
    await lane.run_round()
    lane.lane.close()
    assert lane.take() == []
