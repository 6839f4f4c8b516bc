"""The Python client and every command outcome, with the real broker and the real service."""

import asyncio
import json
import runpy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from tests.e2e.conftest import ON_EACH_BROKER, ON_SQLITE, User
from tests.harness.processes import NatsServer, Service
from timer_service.client import (
    CommandError,
    DueTimeReached,
    NewTimer,
    NoAnswerError,
    Outcome,
    QueryError,
    Timer,
    TimerClient,
    TimerExpired,
    TimersCancelled,
    TimerServiceError,
    TimerState,
)

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "client.py"
LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service that makes one attempt to publish an event."""
    async with Service(tmp_path / "service", broker.url, TIMER_MAX_ATTEMPTS="1", **stored) as running:
        yield running


@pytest.fixture
async def client(broker: NatsServer, service: Service) -> AsyncIterator[TimerClient]:
    async with TimerClient.connect(broker.url) as connected:
        yield connected


async def until_state(client: TimerClient, state: TimerState, call: str = "call-1") -> Timer:
    """Wait until a timer has a state."""
    async with asyncio.timeout(10):
        while True:
            timer = await client.timers.get("acme", call)
            if timer is not None and timer.state == state:
                return timer
            await asyncio.sleep(0.02)


async def counted(service: Service, message_type: str, outcome: str) -> float:
    return await service.metric(f'timer_commands_received_total{{outcome="{outcome}",type="{message_type}"}}')


@pytest.mark.slow
def test_the_example_of_the_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/examples/client.py prints what its comments say."""
    main = runpy.run_path(str(EXAMPLE))["main"]

    async def run() -> None:
        async with NatsServer(tmp_path / "nats") as server, Service(tmp_path / "service", server.url):
            monkeypatch.setenv("TIMER_BROKER_URL", server.url)
            await main()

    asyncio.run(run())
    # A signal that changes its status meanwhile can be listed with both.
    lines = [line for line, _ in groupby(capsys.readouterr().out.splitlines())]
    assert [line.split()[0] for line in lines[:4]] == ["scheduled", "rescheduled", "cancelled", "not_found"]
    assert lines[4].startswith("Scheduled 20")
    assert lines[5] == "due next: order-1/payment"
    assert "'Scheduled': 999" in lines[6]
    assert lines[7:9] == ["transitioned", "reminder: call-kim Call Kim."]
    assert lines[9:12] == ["3 slots", "created", "paused"]
    assert lines[12:13] == ["recurring: standup paused 0 9 * * MON-FRI"]
    assert lines[13:16] == ["started", "recorded", "ready: ['lint', 'publish']"]
    assert lines[16:19] == ["started", "sent", "cancelled"]
    assert lines[19].startswith("TOO_LARGE [{'path': 'payload.data'")
    assert lines[20:] == ["fired: order-1/payment None"]


async def test_schedule_returns_the_timer(client: TimerClient) -> None:
    """The outcome of a command holds the timer after the command, with timezone-aware datetimes."""
    due_at = LATER.astimezone(timezone(timedelta(hours=5, minutes=30)))
    outcome = await client.timers.schedule("acme", "call-1", due_at, data={"kept": [1, None, "ü"]})
    assert outcome.name == "scheduled"
    timer = outcome.timer
    assert timer is not None
    assert (timer.tenant, timer.timer_id, timer.state, timer.attempt) == ("acme", "call-1", "Scheduled", 0)
    assert (timer.due_at, timer.data) == (LATER, {"kept": [1, None, "ü"]})
    assert abs(timer.registered_at - datetime.now(UTC)) < timedelta(seconds=10)
    assert await client.timers.get("acme", "call-1") == timer
    assert await client.timers.get("other", "call-1") is None


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "singly"])
@ON_SQLITE
async def test_schedule_many(user: User, client: TimerClient, service: Service, *, atomic: bool) -> None:
    """`schedule_many` returns one result per timer, in order, with or without atomic batches in the stream."""
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.update_stream(config.evolve(allow_atomic=atomic))
    timers = [NewTimer("acme", f"call-{index}", LATER, data=index) for index in range(2_500)]
    timers[1_234] = NewTimer("acme", "call-1234", LATER, data="x" * 70_000)
    ended: list[int] = []
    endings = await client.timers.schedule_many([*timers, timers[0]], progress=ended.append)
    assert ended == list(range(1, 2_502))
    rejected = endings[1_234]
    assert isinstance(rejected, CommandError)
    assert (rejected.code, rejected.errors[0]["path"]) == ("TOO_LARGE", "payload.data")
    outcomes = [each for each in endings if isinstance(each, Outcome)]
    assert [each.name for each in outcomes] == ["scheduled"] * 2_499 + ["unchanged"]
    assert [each.timer.data for each in outcomes[:-1] if each.timer] == [*range(1_234), *range(1_235, 2_500)]
    assert await client.timers.schedule_many([]) == []
    ended.clear()

    def stop(count: int) -> None:
        ended.append(count)
        raise LookupError

    with pytest.raises(LookupError):
        await client.timers.schedule_many(timers[:3], progress=stop)
    assert ended == [1]
    assert await counted(service, "ScheduleTimer", "scheduled") == 2_499


@ON_SQLITE
async def test_schedule_many_when_the_stream_refuses_one(user: User, client: TimerClient) -> None:
    """If the stream refuses one command of a batch, the other commands still end as usual."""
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.update_stream(config.evolve(max_msg_size=10_000, allow_atomic=True))
    large = NewTimer("acme", "large", LATER, data="x" * 20_000)
    good = [NewTimer("acme", f"call-{index}", LATER) for index in range(3)]
    first, refused, *rest = await client.timers.schedule_many([good[0], large, *good[1:]])
    assert isinstance(refused, NoAnswerError)
    assert "message size exceeds maximum allowed (10054)" in str(refused)
    assert [each.name for each in (first, *rest) if isinstance(each, Outcome)] == ["scheduled"] * 3


async def test_list_and_count(client: TimerClient) -> None:
    """`list` reads every page, Scheduled timers first, filters work, and `count` agrees with `list`."""
    due = [LATER + timedelta(minutes=index) for index in range(250)]
    await client.timers.schedule_many([NewTimer("acme", f"call-{index}", at) for index, at in enumerate(due)])
    await client.timers.schedule("other", "call-1", LATER)
    for index in range(10):
        await client.timers.cancel("acme", f"call-{index}")
    assert [each.due_at async for each in client.timers.list("acme")] == [*due[10:], *due[9::-1]]
    cancelled = [each.timer_id async for each in client.timers.list("acme", state="Cancelled")]
    assert cancelled == [f"call-{index}" for index in range(9, -1, -1)]
    window = client.timers.list("acme", state="Scheduled", due_after=due[20], due_before=due[23])
    assert [each.due_at async for each in window] == due[20:23]
    counts = await client.timers.count("acme")
    assert counts.by_state == {"Scheduled": 240, "Reached": 0, "Expired": 0, "Cancelled": 10, "Failed": 0}
    assert (counts.overdue, counts.exact, counts.oldest_due) == (0, True, due[10])
    assert (await client.timers.count("nobody")).oldest_due is None


@ON_EACH_BROKER
@ON_SQLITE
async def test_watch(client: TimerClient) -> None:
    """`watch` yields the ends of the timers of one tenant or of all tenants, and of cancellations by prefix."""
    mine, all_of_them = await begun(client, "acme"), await begun(client, "*")
    await client.timers.schedule("other", "call-1", PAST)
    await client.timers.schedule("acme", "call-1", PAST, data=7, topic="unpaid")
    async with asyncio.timeout(5):
        assert {each.tenant for each in (await anext(all_of_them), await anext(all_of_them))} == {"acme", "other"}
        events = [await anext(mine)]
        await client.timers.schedule("acme", "call-2", PAST, late_by=timedelta(seconds=1))
        events.append(await anext(mine))
        await client.timers.schedule("acme", "call-3", PAST, late_by=timedelta(seconds=1), topic="late")
        events.append(await anext(mine))
        await client.timers.cancel_prefix("acme", "call")
        events.append(await anext(mine))
    fired, expired, late, cancelled = events
    assert isinstance(fired, DueTimeReached)
    assert (fired.timer_id, fired.topic, fired.data, fired.raw["payload"]["data"]) == ("call-1", "unpaid", 7, 7)
    assert isinstance(expired, TimerExpired)
    assert isinstance(late, TimerExpired)
    assert (expired.topic, late.topic) == (None, "late")
    assert isinstance(cancelled, TimersCancelled)


async def begun(client: TimerClient, tenant: str) -> AsyncIterator[Any]:
    """Return a watch that has begun: nothing else tells it than an event."""
    watch, number = client.timers.watch(tenant), 0
    first = asyncio.ensure_future(anext(watch))
    while not first.done():
        number += 1
        await client.timers.schedule("begin" if tenant == "*" else tenant, f"begin-{tenant}-{number}", PAST)
    await first

    async def without_first() -> AsyncIterator[Any]:
        async for event in watch:
            if not getattr(event, "timer_id", "").startswith("begin"):
                yield event

    return without_first()


@ON_SQLITE
async def test_rejections(client: TimerClient, user: User) -> None:
    """A rejected command raises CommandError with code and fields. A rejected query raises QueryError."""
    with pytest.raises(CommandError) as rejected:
        await client.timers.schedule("acme", "call-1", LATER, data="x" * 70_000)
    assert (rejected.value.code, rejected.value.errors[0]["path"]) == ("TOO_LARGE", "payload.data")
    await user.until_stored("TIMER_DLQ", 1)
    with pytest.raises(QueryError) as refused:
        await client.query("acme", "list-timers", {"cursor": "mine"})
    assert (refused.value.code, refused.value.errors[0]["path"]) == ("INVALID_PAYLOAD", "cursor")


@pytest.mark.slow
async def test_missing_stream_service_or_broker(broker: NatsServer, tmp_path: Path) -> None:
    """Without a stream, a service or a broker, calls raise a NoAnswerError that says what is missing."""
    async with TimerClient.connect(broker.url) as client:
        with pytest.raises(
            NoAnswerError, match="no stream accepts commands of this tenant here; is timer-service running, "
        ):
            await client.timers.schedule("acme", "call-1", LATER)
        many = await client.timers.schedule_many([NewTimer("acme", f"call-{index}", LATER) for index in range(10)])
        assert {type(each) for each in many} == {NoAnswerError}
        with pytest.raises(NoAnswerError, match="no service answers queries"):
            await client.timers.get("acme", "call-1")
        async with Service(tmp_path / "service", broker.url) as service:
            await service.terminate()
        with pytest.raises(NoAnswerError, match=r"no outcome within 0\.2 s; the command may be handled later"):
            await client.timers.schedule("acme", "call-1", LATER, timeout_seconds=0.2)
        watching = asyncio.ensure_future(anext(client.timers.watch()))
        with pytest.raises(NoAnswerError):  # a round trip after the subscription of `watch`
            await client.timers.get("acme", "call-1")
        await broker.terminate()
        with pytest.raises(NoAnswerError, match="has ended"):
            await watching
        with pytest.raises(NoAnswerError):
            await client.timers.schedule("acme", "call-1", LATER, timeout_seconds=1)
    with pytest.raises(NoAnswerError, match="cannot connect to the broker at nats://"):
        async with TimerClient.connect(broker.url):
            pass


@ON_EACH_BROKER
@ON_SQLITE
async def test_reconnect(broker: NatsServer, client: TimerClient) -> None:
    """After a restart of the broker the client works again. A `watch` from before the restart raises NoAnswerError."""
    watching = asyncio.ensure_future(anext(await begun(client, "*")))
    await broker.terminate()
    with pytest.raises(NoAnswerError, match="events may be missing"):
        await watching
    with pytest.raises(NoAnswerError, match=r"not connected|connection to the broker was lost"):
        await client.timers.get("acme", "call-1")
    with pytest.raises(NoAnswerError, match=r"not connected|connection to the broker was lost"):
        await client.timers.schedule("acme", "call-1", LATER)
    await broker.start()
    outcome = await until_answered(lambda: client.timers.schedule("acme", "call-1", LATER, timeout_seconds=2))
    assert outcome.timer == await until_answered(lambda: client.timers.get("acme", "call-1"))


@ON_EACH_BROKER
@ON_SQLITE
async def test_calls_in_flight_end_when_the_connection_is_lost(broker: NatsServer, service: Service) -> None:
    """A lost or closed connection ends the calls in flight at once. They do not wait for their timeouts."""
    ended: list[int] = []
    async with TimerClient.connect(broker.url) as client:
        timers = [NewTimer("acme", f"call-{index}", LATER) for index in range(5_000)]
        sending = asyncio.ensure_future(client.timers.schedule_many(timers, progress=ended.append, timeout_seconds=60))
        while not ended:
            await asyncio.sleep(0)
        await service.kill()
        asking = asyncio.ensure_future(client.timers.get("acme", "call-1", timeout_seconds=60))
        await asyncio.sleep(0)
        await broker.kill()
        async with asyncio.timeout(10):
            results = await sending
            with pytest.raises(NoAnswerError):
                await asking
    assert {type(each) for each in results} == {Outcome, NoAnswerError}
    assert ended[-1] == 5_000


FIRED = json.dumps(
    {
        "id": "event-1",
        "type": "DueTimeReached",
        "tenantId": "acme",
        "timestampMs": 1,
        "payload": {"serviceCallId": "call-1", "dueAt": "2026-11-21T09:00:00Z", "reachedAt": "2026-11-21T09:00:00Z"},
    }
).encode()
UNREADABLE = [b"{", b"\xff\xfe", b"null", b"1", b"[]", b'"x"', b"{}", b'{"error": {}}', b'{"error": 1}', b"[" * 60_000]


async def test_unreadable_answers(broker: NatsServer) -> None:
    """An answer that is not the service's raises TimerServiceError. A message that is no event is not yielded."""
    answers = iter(UNREADABLE)
    async with TimerClient.connect(broker.url) as client:
        connection = await nats.connect(broker.url)

        async def answer(message: Msg) -> None:
            await message.respond(next(answers))

        await connection.subscribe("timer.qry.v1.acme.*", cb=answer)
        for _ in UNREADABLE:
            with pytest.raises(TimerServiceError):
                _ = [each async for each in client.timers.list("acme")]
        watching = asyncio.ensure_future(anext(client.timers.watch("acme")))
        async with asyncio.timeout(5):
            while not watching.done():  # what is published before `watch` has subscribed is not received
                for body in (*UNREADABLE, b'{"payload": {"serviceCallId": "call-0"}}', FIRED):
                    await connection.publish("timer.evt.v1.acme.due-time-reached", body)
                await asyncio.wait([watching], timeout=0.05)
        assert watching.result().raw == json.loads(FIRED)
        await connection.close()


async def test_result_waits_for_a_busy_service(broker: NatsServer) -> None:
    """A wait for the result of a workflow goes on if the service cannot answer a query at the moment."""
    answers = iter(["BUSY", "INTERNAL", "NOT_FOUND"])
    async with TimerClient.connect(broker.url) as client:
        connection = await nats.connect(broker.url)

        async def answer(message: Msg) -> None:
            error = {"code": next(answers), "message": "no", "errors": []}
            await message.respond(json.dumps({"error": error}).encode())

        await connection.subscribe("timer.qry.v1.acme.get-workflow", cb=answer)
        await connection.flush()
        with pytest.raises(LookupError):
            await client.workflows.result("acme", "order-1", timeout_seconds=15)
        assert list(answers) == []
        await connection.close()


async def until_answered(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call until it does not raise NoAnswerError."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await call()
            except NoAnswerError:
                await asyncio.sleep(0.05)


async def test_outcomes_of_schedule_timer(user: User, client: TimerClient, service: Service) -> None:
    """The reply and the metric show each outcome of ScheduleTimer."""
    moved = LATER + timedelta(hours=1)
    outcomes = [
        await client.timers.schedule("acme", "call-1", LATER),
        await client.timers.schedule("acme", "call-1", moved),
        await client.timers.schedule("acme", "call-1", moved),
        await client.timers.schedule("acme", "call-1", moved, data=[1]),
    ]
    await client.timers.cancel("acme", "call-1")
    outcomes += [await client.timers.schedule("acme", "call-1", PAST)]
    await until_state(client, "Reached")
    outcomes += [await client.timers.schedule("acme", "call-1", LATER)]
    names = ["scheduled", "rescheduled", "unchanged", "updated", "scheduled", "ignored_reached"]
    assert [each.name for each in outcomes] == names
    for name in names:
        assert await counted(service, "ScheduleTimer", name) == names.count(name)
    reached = outcomes[-1].timer
    assert reached is not None
    assert reached.reached_at is not None
    assert (reached.state, reached.due_at) == ("Reached", PAST)
