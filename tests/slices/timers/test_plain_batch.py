"""Batches that only schedule new timers are added without models and states. Nothing else about them differs."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.harness.builders import cancel_timer, cancel_timers, command, retry_timer
from tests.harness.clock import NOW, ManualClock, iso
from tests.harness.timers import Timers
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.broker import Reply
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command, Message, Position, Trace
from timer_service.timers import plain_batch, rules, store
from timer_service.timers.handler import handle
from timer_service.timers.messages import ScheduleTimer
from timer_service.timers.plain_timer import PlainTimer
from timer_service.timers.rules import Key

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def send_schedule(rng: random.Random, timers: Timers, call: str) -> None:
    """Send a ScheduleTimer with some of the fields and headers that it may have."""
    more: dict[str, Any] = rng.choice(({}, {"data": {"n": [1.5, None]}}, {"data": "x" * 1500}, {"data": None}))
    envelope = rng.choice(({}, {"id": f"id-{rng.randrange(9)}"}, {"correlationId": "order", "timestampMs": 1}))
    if rng.randrange(9) == 0:
        more = {**more, "lateBy": "PT1S"}
    fields = {"serviceCallId": call, **more}
    fields |= {"dueIn": rng.randrange(90_000)} if rng.randrange(3) == 0 else {"dueAt": iso(NOW + rng.randrange(90_000))}
    body = command("ScheduleTimer", fields, envelope=envelope)
    headers = rng.choice(({}, {}, {"traceparent": TRACEPARENT, "tracestate": "a=b"}))
    if rng.randrange(12) == 0:
        headers = {**headers, "Timer-Reply-To": "_INBOX.1"}
    timers.send(body, headers)


def send_other(rng: random.Random, timers: Timers, call: str) -> None:
    """Send a command of another type."""
    kind = rng.randrange(3)
    if kind == 0:
        timers.send(cancel_timer(call), message="cancel-timer")
    elif kind == 1:
        timers.send(retry_timer(call), message="retry-timer")
    else:
        timers.send(cancel_timers(call), message="cancel-timers")


async def play(database: SqliteDatabase, seed: int) -> tuple[list[Mapping[str, Any]], list[Reply], list[Message], Any]:
    """Handle batches of which most only schedule new timers. Return rows, replies, events and counted outcomes."""
    rng = random.Random(seed)
    timers = Timers(database, MemoryBroker(), ManualClock(), batch_size=50)
    for batch in range(8):
        for number in range(rng.randrange(1, 20)):
            call = f"call-{batch}-{number}" if rng.randrange(8) or batch % 3 == 0 else f"call-{rng.randrange(3)}-1"
            if batch % 3 and rng.randrange(10) == 0:
                send_other(rng, timers, call)
            else:
                send_schedule(rng, timers, call)
        timers.clock.advance(milliseconds=rng.randrange(5000))
        await timers.consume()
    await timers.pass_cancellations()
    await timers.publish()
    timers.clock.advance(minutes=3)
    while await timers.tick():
        pass
    rows = await database.reader.fetch("SELECT * FROM timer_schedules ORDER BY tenant_id, service_call_id")
    found: list[Mapping[str, Any]] = [dict(row) for row in rows]
    async with database.transaction() as tx:
        await tx.execute("DELETE FROM timer_schedules")
        await tx.execute("DELETE FROM timer_cancellations")
        await tx.execute("DELETE FROM command_log")
    return found, timers.broker.replies, timers.broker.events, timers.metrics.commands


@pytest.mark.parametrize("seed", range(6))
async def test_rows_replies_and_events_are_those_of_the_models(
    sqlite: SqliteDatabase, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batches end alike with plain decoding and adding, with plain decoding alone, and without both."""
    both = await play(sqlite, seed)

    async def add_nothing(*_arguments: object) -> None: ...

    monkeypatch.setattr("timer_service.timers.handler.add_plain_batch", add_nothing)
    decoded = await play(sqlite, seed)
    monkeypatch.setattr(ScheduleTimer, "decode_plain", classmethod(lambda _cls, _body: None))
    neither = await play(sqlite, seed)
    assert len(both[0]) > 20
    assert both == decoded == neither


def plain(call: str, sequence: int, **more: Any) -> Command:
    payload = PlainTimer("acme", call, NOW, None, None)
    return Command(f"c{sequence}", payload, Position(1, sequence), None, Trace(), None)._replace(**more)


@pytest.mark.parametrize("data", [None, "1", "x" * 1000, "x" * 1001])
@pytest.mark.parametrize("more", [{}, {"correlation_id": "order"}, {"trace": Trace(TRACEPARENT, "a=b")}])
def test_a_plain_row_is_that_of_the_rules(data: str | None, more: dict[str, Any]) -> None:
    """The row of a plain command is that of the timer that the rules make of it."""
    given = plain("call-1", 1, **more)
    payload = PlainTimer("acme", "call-1", NOW + 5, None, data)
    timer = rules.new_timer(Key("acme", "call-1"), given, payload, NOW)
    row = store.plain_row(given, payload, NOW + 5, rules.event_id(timer.key, NOW + 5, given.position), NOW)
    assert row == store.new_row(timer)
    assert (row[1] is store._NO_RARE_VALUES) == (not more and data != "x" * 1001)


@pytest.mark.parametrize(
    ("batch", "is_plain"),
    [
        ([plain("a", 1), plain("b", 2)], True),
        ([plain("a", 1), plain("a", 2)], False),
        ([plain("a", 1), plain("b", 2, reply_to="_INBOX.1")], False),
        ([plain("a", 1, payload=ScheduleTimer(tenant_id="acme", service_call_id="a", due_in=1))], False),
    ],
)
async def test_which_batches_are_plain(sqlite: SqliteDatabase, batch: list[Command], *, is_plain: bool) -> None:
    """A batch is plain if its commands are, name different timers, and want no view."""
    async with sqlite.transaction() as tx:
        added = await plain_batch.add_plain_batch(tx, batch, NOW, TransactionTime(lambda: 0), None)
    assert (added is not None) == is_plain


async def test_a_batch_with_timers_that_exist(sqlite: SqliteDatabase) -> None:
    """The new timers of a plain batch are added, and the commands on the others are applied to what is there."""
    async with sqlite.transaction() as tx:
        await handle(tx, [plain("b", 1)], NOW, quotas=Quotas())
        results = await handle(tx, [plain("a", 2), plain("b", 1), plain("c", 3)], NOW, quotas=Quotas())
    assert [each and each.name for each in results] == ["scheduled", "unchanged", "scheduled"]


async def test_a_plain_batch_ends_with_its_time(sqlite: SqliteDatabase) -> None:
    """After 50 ms, the rest of a plain batch is deferred."""
    seconds = iter([0.0, *[0.0005] * 2])
    async with sqlite.transaction() as tx:
        batch = [plain(call, number) for number, call in enumerate("abcde", 1)]
        results = await handle(tx, batch, NOW, quotas=Quotas(), monotonic=lambda: next(seconds, 1.0))
    assert [each and each.name for each in results] == ["scheduled"] * 3 + [None] * 2


LIMITED = Limits(pending_timers=25, stored_data=12_000)


def schedules(rng: random.Random, calls: Iterator[int], sequences: Iterator[int]) -> list[Command]:
    """Return a batch of plain commands of two tenants, on different timers, of which most do not exist yet."""
    payloads = {}
    for _ in range(rng.randrange(1, 9)):
        tenant, call = rng.choice(("acme", "globex")), f"call-{next(calls) if rng.randrange(3) else rng.randrange(20)}"
        data = rng.choice((None, '"x"', f'"{"x" * 1500}"'))
        payloads[tenant, call] = PlainTimer(tenant, call, NOW + rng.randrange(-1, 9) * 1000, None, data)
    return [plain("", next(sequences), payload=payload) for payload in payloads.values()]


@pytest.mark.parametrize("seed", range(4))
async def test_limits_of_a_batch_are_those_of_its_commands(sqlite: SqliteDatabase, seed: int) -> None:
    """A plain batch ends as its commands one by one, also while its tenants reach their limits and get room again."""
    rng = random.Random(seed)
    calls, sequences, seconds = itertools.count(20), itertools.count(1), itertools.count(0, 1000)
    quotas = Quotas(TenantLimits(default=LIMITED), monotonic=lambda: next(seconds))
    outcomes = Counter[str]()
    for now in range(NOW, NOW + 8000, 200):
        batch = schedules(rng, calls, sequences)
        one_by_one: list[CommandResult | None] = []
        with suppress(_RolledBackError):
            async with sqlite.transaction() as tx:
                for each in batch:
                    one_by_one += await handle(tx, [each], now, quotas=Quotas(TenantLimits(default=LIMITED)))
                raise _RolledBackError
        async with sqlite.transaction() as tx:
            together = await handle(tx, batch, now, quotas=quotas)
        assert _shown(together) == _shown(one_by_one)
        outcomes.update(each.name for each in together if each is not None)
    assert min(outcomes["scheduled"], outcomes["over_quota"]) > 10


def _shown(results: Sequence[CommandResult | None]) -> list[object]:
    return [each and (each.name, each.wake_at, each.view and each.view()) for each in results]


async def test_what_takes_no_room(sqlite: SqliteDatabase) -> None:
    """Timers that exist already, or are due, take no room of a limit, so the rows are not counted again for them."""
    quotas = Quotas(TenantLimits(default=LIMITED), monotonic=lambda: 0)
    left = []
    for now in (NOW - 1, NOW - 1, NOW):
        async with sqlite.transaction() as tx:
            await handle(tx, [plain("a", now), plain("b", now), plain(f"new-{now}", now)], now, quotas=quotas)
        left.append(quotas.rooms["acme", "pending_timers"].left)
    assert left == [22, 22, 22]


class _RolledBackError(Exception):
    """Ends a transaction without a commit."""
