"""The Python client and every command outcome, with the real broker and the real service."""

import asyncio
import json
import re
import runpy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import NatsServer, Service
from timer_service.client import (
    CommandError,
    NewTimer,
    NoAnswerError,
    Outcome,
    QueryError,
    State,
    Timer,
    TimerClient,
    TimerServiceError,
)

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"
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


async def until_state(client: TimerClient, state: State, call: str = "call-1") -> Timer:
    """Wait until a timer has a state."""
    async with asyncio.timeout(10):
        while True:
            timer = await client.get("acme", call)
            if timer is not None and timer.state == state:
                return timer
            await asyncio.sleep(0.02)


async def until_failed(user: User, client: TimerClient) -> Timer:
    """Make a timer fail: its event is larger than the stream accepts."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_msg_size=2_000))
    await client.schedule("acme", "call-1", PAST, data="x" * 3_000)
    failed = await until_state(client, State.FAILED)
    await user.js.update_stream(config.evolve(max_msg_size=-1))
    return failed


async def counted(service: Service, message_type: str, outcome: str) -> float:
    return await service.metric(f'timer_commands_received_total{{outcome="{outcome}",type="{message_type}"}}')


@pytest.mark.slow
def test_the_example_of_the_guide_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example in docs/client.md prints what its comments say."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example, "utf-8")
    main = runpy.run_path(str(tmp_path / "example.py"))["main"]

    async def run() -> None:
        async with NatsServer(tmp_path / "nats") as server, Service(tmp_path / "service", server.url):
            await main(server.url)

    asyncio.run(run())
    lines = capsys.readouterr().out.splitlines()
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
    outcome = await client.schedule("acme", "call-1", due_at, data={"kept": [1, None, "ü"]})
    assert outcome.name == "scheduled"
    timer = outcome.timer
    assert timer is not None
    assert (timer.tenant, timer.call, timer.state, timer.attempt) == ("acme", "call-1", State.SCHEDULED, 0)
    assert (timer.due_at, timer.data) == (LATER, {"kept": [1, None, "ü"]})
    assert abs(timer.registered_at - datetime.now(UTC)) < timedelta(seconds=10)
    assert await client.get("acme", "call-1") == timer
    assert await client.get("other", "call-1") is None


async def test_relative_due_time(client: TimerClient) -> None:
    """A timer with `due_in` is due this long after the broker has stored the command."""
    before = datetime.now(UTC)
    outcome = await client.schedule("acme", "call-1", due_in=timedelta(hours=1, microseconds=1))
    (many,) = await client.schedule_many([NewTimer("acme", "call-2", due_in=timedelta(hours=1))])
    after = datetime.now(UTC)
    for ended in (outcome, many):
        assert isinstance(ended, Outcome)
        assert ended.timer is not None
        assert before <= ended.timer.due_at - timedelta(hours=1) <= after + timedelta(milliseconds=2)


async def test_expiry(client: TimerClient) -> None:
    """A timer that is past its expiry when it fires expires. It can be scheduled again, but not cancelled."""
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    await client.schedule("acme", "at", long_ago, expires_at=long_ago + timedelta(seconds=1))
    await client.schedule_many([NewTimer("acme", "late", long_ago, late_by=timedelta(seconds=1))])
    for call in ("at", "late"):
        timer = await until_expired(client, call)
        assert timer.expires_at == long_ago + timedelta(seconds=1)
        assert timer.expired_at is not None
        assert abs(timer.expired_at - datetime.now(UTC)) < timedelta(seconds=10)
        assert (await client.cancel("acme", call)).name == "already_expired"
        assert (await client.schedule("acme", call, LATER)).name == "scheduled"


async def test_cancel_prefix(user: User, client: TimerClient) -> None:
    """The timers whose ids begin with the prefix are cancelled, and an event then has their number."""
    timers = [NewTimer("acme", f"order-{number}/reminder", LATER) for number in (1, 1, 10, 2)]
    timers += [NewTimer("acme", f"order-1/{number}", LATER) for number in range(1500)]
    await client.schedule_many(timers)
    outcome = await client.cancel_prefix("acme", "order-1/")
    assert outcome.name == "cancelling"
    async with asyncio.timeout(30):
        while (counts := await client.count("acme")).by_state["Cancelled"] < 1501:
            await asyncio.sleep(0.02)
    assert counts.by_state["Scheduled"] == 2


async def until_expired(client: TimerClient, call: str) -> Timer:
    async with asyncio.timeout(10):
        while (timer := await client.get("acme", call)) is None or timer.state != State.EXPIRED:
            await asyncio.sleep(0.02)
    return timer


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "singly"])
@ON_SQLITE
async def test_schedule_many(user: User, client: TimerClient, service: Service, *, atomic: bool) -> None:
    """`schedule_many` returns one result per timer, in order, with or without atomic batches in the stream."""
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.update_stream(config.evolve(allow_atomic=atomic))
    timers = [NewTimer("acme", f"call-{index}", LATER, data=index) for index in range(2_500)]
    timers[1_234] = NewTimer("acme", "call-1234", LATER, data="x" * 70_000)
    ended: list[int] = []
    endings = await client.schedule_many([*timers, timers[0]], progress=ended.append)
    assert ended == list(range(1, 2_502))
    rejected = endings[1_234]
    assert isinstance(rejected, CommandError)
    assert (rejected.code, rejected.errors[0]["path"]) == ("TOO_LARGE", "payload.data")
    outcomes = [each for each in endings if isinstance(each, Outcome)]
    assert [each.name for each in outcomes] == ["scheduled"] * 2_499 + ["unchanged"]
    assert [each.timer.data for each in outcomes[:-1] if each.timer] == [*range(1_234), *range(1_235, 2_500)]
    assert await client.schedule_many([]) == []
    assert await counted(service, "ScheduleTimer", "scheduled") == 2_499


@ON_SQLITE
async def test_schedule_many_when_the_stream_refuses_one(user: User, client: TimerClient) -> None:
    """If the stream refuses one command of a batch, the other commands still end as usual."""
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.update_stream(config.evolve(max_msg_size=10_000, allow_atomic=True))
    large = NewTimer("acme", "large", LATER, data="x" * 20_000)
    good = [NewTimer("acme", f"call-{index}", LATER) for index in range(3)]
    first, refused, *rest = await client.schedule_many([good[0], large, *good[1:]])
    assert isinstance(refused, NoAnswerError)
    assert "message size exceeds maximum allowed" in str(refused)
    assert [each.name for each in (first, *rest) if isinstance(each, Outcome)] == ["scheduled"] * 3


async def test_list_and_count(client: TimerClient) -> None:
    """`list` reads every page in order of due time, filters work, and `count` agrees with `list`."""
    due = [LATER + timedelta(minutes=index) for index in range(250)]
    await client.schedule_many([NewTimer("acme", f"call-{index}", at) for index, at in enumerate(due)])
    await client.schedule("other", "call-1", LATER)
    for index in range(10):
        await client.cancel("acme", f"call-{index}")
    assert [each.due_at async for each in client.list("acme")] == due
    cancelled = [each.call async for each in client.list("acme", state=State.CANCELLED)]
    assert cancelled == [f"call-{index}" for index in range(10)]
    window = client.list("acme", state="Scheduled", due_after=due[20], due_before=due[23])
    assert [each.due_at async for each in window] == due[20:23]
    counts = await client.count("acme")
    assert counts.by_state == {"Scheduled": 240, "Reached": 0, "Expired": 0, "Cancelled": 10, "Failed": 0}
    assert (counts.overdue, counts.exact, counts.oldest_due) == (0, True, due[10])
    assert (await client.count("nobody")).oldest_due is None


@ON_SQLITE
async def test_watch(client: TimerClient) -> None:
    """`watch` yields the events of one tenant or of all tenants."""
    mine, all_of_them = client.watch("acme"), client.watch()
    first, any_first = asyncio.ensure_future(anext(mine)), asyncio.ensure_future(anext(all_of_them))
    await client.count("acme")  # the subscriptions were sent before it on this connection
    await client.schedule("other", "call-1", PAST)
    await client.schedule("acme", "call-1", PAST, data=7)
    async with asyncio.timeout(5):
        assert (await any_first)["tenantId"] == "other"
        event = await first
    assert (event["type"], event["payload"]["serviceCallId"], event["payload"]["data"]) == (
        "DueTimeReached",
        "call-1",
        7,
    )


@ON_SQLITE
async def test_watch_that_is_given_up_at_once(client: TimerClient, caplog: pytest.LogCaptureFixture) -> None:
    """A watch that is cancelled while it begins leaves the connection intact."""
    for turns in range(40):
        watching = asyncio.ensure_future(anext(client.watch("acme")))
        for _ in range(turns):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait([watching])
        await client.count("acme")
    assert [record.getMessage() for record in caplog.records] == []


@ON_SQLITE
async def test_watch_of_all_endings(client: TimerClient) -> None:
    """`watch` yields a timer that fires, one that expires, and the end of a cancellation by prefix."""
    watch = client.watch("acme")
    first = asyncio.ensure_future(anext(watch))
    await client.count("acme")  # the subscriptions were sent before it on this connection
    await client.schedule("acme", "call-1", PAST)
    async with asyncio.timeout(5):
        types = [(await first)["type"]]
        await client.schedule("acme", "call-2", PAST, late_by=timedelta(seconds=1))
        types.append((await anext(watch))["type"])
        await client.cancel_prefix("acme", "call")
        types.append((await anext(watch))["type"])
    assert types == ["DueTimeReached", "TimerExpired", "TimersCancelled"]


@ON_SQLITE
async def test_watch_runs(client: TimerClient) -> None:
    """`runs.watch` yields a JobReady event for each job that becomes ready."""
    first = asyncio.ensure_future(anext(client.runs.watch("acme")))
    await client.count("acme")  # the subscription was sent before it on this connection
    await client.runs.start("acme", "build-1", [{"name": "lint"}, {"name": "publish", "needs": ["lint"]}])
    async with asyncio.timeout(5):
        event = await first
    assert (event["type"], event["payload"]["runId"], event["payload"]["jobName"]) == ("JobReady", "build-1", "lint")


NAIVE = datetime(2100, 1, 1)  # noqa: DTZ001 - the mistake
MISTAKES: dict[str, Any] = {
    "tenant ": lambda client: client.schedule("a.b", "call", LATER),
    "call ": lambda client: client.schedule("acme", "a\nb", LATER),
    "call must be 1 to 200": lambda client: client.cancel("acme", "x" * 201),
    "tenant must": lambda client: client.retry("", "call"),
    "due_at must have": lambda client: client.schedule("acme", "call", NAIVE),
    "due_at must lie": lambda client: client.schedule("acme", "call", datetime(1969, 12, 31, tzinfo=UTC)),
    "due_at or due_in must be given, and not both": lambda client: client.schedule("acme", "call"),
    "due_at or due_in must": lambda client: client.schedule("acme", "call", LATER, due_in=timedelta(1)),
    "due_in must lie between 0 and 366 days": lambda client: client.schedule("acme", "call", due_in=timedelta(367)),
    "expires_at must have": lambda client: client.schedule("acme", "call", LATER, expires_at=NAIVE),
    "late_by must lie": lambda client: client.schedule("acme", "call", LATER, late_by=timedelta(-1)),
    "prefix must be 1 to 200": lambda client: client.cancel_prefix("acme", ""),
    "due_in must lie": lambda client: client.schedule("acme", "call", due_in=timedelta(seconds=-1)),
    "data must be JSON": lambda client: client.schedule("acme", "call", LATER, data=object()),
    "data must be JSON: Out of range": lambda client: client.schedule("acme", "call", LATER, data=float("nan")),
    "data must be smaller": lambda client: client.schedule("acme", "call", LATER, data="x" * 1_100_000),
    r"timers\[1\]\.due_at": lambda client: client.schedule_many(
        [NewTimer("acme", "a", LATER), NewTimer("acme", "b", NAIVE)]
    ),
    "call": lambda client: client.get("acme", ""),
    "tenant": lambda client: client.count("*"),
    "state must be one of Scheduled, Reached": lambda client: anext(client.list("acme", state="scheduled")),
    "due_before must": lambda client: anext(client.list("acme", due_before=NAIVE)),
    "due_after must": lambda client: anext(client.list("acme", due_after=NAIVE)),
    "tenant must be": lambda client: anext(client.watch("a.b")),
    "call must be 1 to 200 characters": lambda client: client.get("acme", "\ud800"),
    "data must be JSON: 'utf-8'": lambda client: client.schedule("acme", "call", LATER, data="\ud800"),
    "on must be a list": lambda client: client.signals.create("acme", "signal", item="item", on="blocked"),
    "on must be 1 to 100": lambda client: client.signals.create("acme", "signal", item="item", on=[""]),
    "to must be 1 to 100": lambda client: client.signals.transition("acme", "item", "a\nb"),
    "jobs must be a list": lambda client: client.runs.start("acme", "run", None),
    "jobs must be smaller": lambda client: client.runs.start(
        "acme", "run", [{"name": "x", "payload": "x" * 1_100_000}]
    ),
    "schedule must be 1 to 200": lambda client: client.schedules.pause("acme", ""),
    "cron or every must be given, and not both": lambda client: client.schedules.put("acme", "daily"),
    "cron or every must be given, and not both$": lambda client: client.schedules.preview(
        "acme", cron="@daily", every=timedelta(days=1)
    ),
    "every must be a timedelta": lambda client: client.schedules.put("acme", "daily", every=5),
    "jitter must lie between 0 and 366 days": lambda client: client.schedules.put(
        "acme", "daily", cron="@daily", jitter=timedelta(seconds=-1)
    ),
    "catch_up must be one of last, skip, all": lambda client: client.schedules.put(
        "acme", "daily", cron="@daily", catch_up="newest"
    ),
    "start_at must have": lambda client: client.schedules.put("acme", "daily", cron="@daily", start_at=NAIVE),
    "from_at must have": lambda client: client.schedules.preview("acme", cron="@daily", from_at=NAIVE),
    "status must be one of active": lambda client: anext(client.schedules.list("acme", status="deleted")),
    "status must be one of dispatched": lambda client: client.runs.report("acme", "run", "job", "pending"),
}


@ON_SQLITE
async def test_a_wrong_argument_is_named_and_nothing_is_sent(user: User, client: TimerClient) -> None:
    """A wrong argument raises ValueError with its name, and the client publishes no command."""
    for message, call in MISTAKES.items():
        with pytest.raises(ValueError, match=f"^{message}"):
            await call(client)
    assert await user.stored("TIMER_CMD") == 0


@ON_SQLITE
async def test_rejections(client: TimerClient, user: User) -> None:
    """A rejected command raises CommandError with code and fields. A rejected query raises QueryError."""
    with pytest.raises(CommandError) as rejected:
        await client.schedule("acme", "call-1", LATER, data="x" * 70_000)
    assert (rejected.value.code, rejected.value.errors[0]["path"]) == ("TOO_LARGE", "payload.data")
    await user.until_stored("TIMER_DLQ", 1)
    with pytest.raises(QueryError) as refused:
        _ = [each async for each in client._connection.pages("acme", "list-timers", {"cursor": "mine"}, "timers", 5)]
    assert (refused.value.code, refused.value.errors[0]["path"]) == ("INVALID_PAYLOAD", "cursor")


async def test_refused_login(tmp_path: Path) -> None:
    """A wrong password is named as the reason. It is no missing server."""
    login = "authorization { user: someone, password: right }"
    async with NatsServer(tmp_path / "nats", login) as server:
        with pytest.raises(
            NoAnswerError, match=r"cannot connect to the broker at nats://.*: .*Authorization Violation"
        ):
            async with TimerClient.connect(server.url, user="someone", password="wrong"):
                pass


@pytest.mark.slow
async def test_missing_stream_service_or_broker(broker: NatsServer, tmp_path: Path) -> None:
    """Without a stream, a service or a broker, calls raise a NoAnswerError that says what is missing."""
    async with TimerClient.connect(broker.url) as client:
        with pytest.raises(
            NoAnswerError, match="no stream accepts commands of this tenant here; is timer-service running, "
        ):
            await client.schedule("acme", "call-1", LATER)
        many = await client.schedule_many([NewTimer("acme", f"call-{index}", LATER) for index in range(10)])
        assert {type(each) for each in many} == {NoAnswerError}
        with pytest.raises(NoAnswerError, match="no service answers queries"):
            await client.get("acme", "call-1")
        async with Service(tmp_path / "service", broker.url) as service:
            await service.terminate()
        with pytest.raises(NoAnswerError, match=r"no outcome within 0\.2 s; the command may be handled later"):
            await client.schedule("acme", "call-1", LATER, timeout_seconds=0.2)
        watching = asyncio.ensure_future(anext(client.watch()))
        with pytest.raises(NoAnswerError):  # a round trip after the subscription of `watch`
            await client.get("acme", "call-1")
        await broker.terminate()
        with pytest.raises(NoAnswerError, match="has ended"):
            await watching
        with pytest.raises(NoAnswerError):
            await client.schedule("acme", "call-1", LATER, timeout_seconds=1)
    with pytest.raises(NoAnswerError, match="cannot connect to the broker at nats://"):
        async with TimerClient.connect(broker.url):
            pass


@ON_SQLITE
async def test_reconnect(broker: NatsServer, client: TimerClient) -> None:
    """After a restart of the broker the client works again. A `watch` from before the restart raises NoAnswerError."""
    watching = asyncio.ensure_future(anext(client.watch()))
    await client.count("acme")
    await broker.terminate()
    with pytest.raises(NoAnswerError, match="events may be missing"):
        await watching
    with pytest.raises(NoAnswerError, match="not connected"):
        await client.get("acme", "call-1")
    with pytest.raises(NoAnswerError, match="not connected"):
        await client.schedule("acme", "call-1", LATER)
    await broker.start()
    outcome = await until_answered(lambda: client.schedule("acme", "call-1", LATER, timeout_seconds=2))
    assert outcome.timer == await until_answered(lambda: client.get("acme", "call-1"))


@ON_SQLITE
async def test_calls_in_flight_end_when_the_connection_is_lost(broker: NatsServer, service: Service) -> None:
    """A lost or closed connection ends the calls in flight at once. They do not wait for their timeouts."""
    ended: list[int] = []
    async with TimerClient.connect(broker.url) as client:
        timers = [NewTimer("acme", f"call-{index}", LATER) for index in range(5_000)]
        sending = asyncio.ensure_future(client.schedule_many(timers, progress=ended.append, timeout_seconds=60))
        while not ended:
            await asyncio.sleep(0)
        await service.kill()
        asking = asyncio.ensure_future(client.get("acme", "call-1", timeout_seconds=60))
        await asyncio.sleep(0)
        await broker.kill()
        async with asyncio.timeout(10):
            results = await sending
            with pytest.raises(NoAnswerError):
                await asking
    assert {type(each) for each in results} == {Outcome, NoAnswerError}
    assert ended[-1] == 5_000


async def collect_numbers(watch: AsyncIterator[dict[str, Any]], numbers: list[int]) -> None:
    """Add the number in each event to `numbers`."""
    async for event in watch:
        payload = event["payload"]
        numbers.append(payload["number"])


async def test_events_before_the_end_of_a_watch(broker: NatsServer) -> None:
    """A watch whose connection is lost yields, in order, every event that it had received, and then raises."""
    async with TimerClient.connect(broker.url) as client:
        connection = await nats.connect(broker.url, allow_reconnect=False)
        watch = client.watch("acme")
        first = asyncio.ensure_future(anext(watch))
        with pytest.raises(NoAnswerError):  # a round trip after the subscription of `watch`
            await client.count("acme")
        for number in range(500):
            body = json.dumps({"payload": {"number": number}}).encode()
            await connection.publish("timer.evt.v1.acme.due-time-reached", body)
        await connection.flush()
        numbers = [(await first)["payload"]["number"]]
        with pytest.raises(NoAnswerError):  # a round trip after the events
            await client.count("acme")
        await broker.kill()
        with pytest.raises(NoAnswerError, match="events may be missing"):
            await collect_numbers(watch, numbers)
        assert numbers == list(range(500))
        await connection.close()


@ON_SQLITE
async def test_progress_that_raises(client: TimerClient) -> None:
    """An error of `progress` is raised by `schedule_many`."""
    with pytest.raises(ZeroDivisionError):
        await client.schedule_many([NewTimer("acme", "call-1", LATER)], progress=lambda count: count / 0)


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
                _ = [each async for each in client.list("acme")]
        watching = asyncio.ensure_future(anext(client.watch("acme")))
        with pytest.raises(NoAnswerError):  # a round trip after the subscription of `watch`
            await client.count("other")
        for body in (*UNREADABLE, b'{"payload": {"serviceCallId": "call-1"}}'):
            await connection.publish("timer.evt.v1.acme.due-time-reached", body)
        async with asyncio.timeout(5):
            assert (await watching)["payload"] == {"serviceCallId": "call-1"}
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


async def test_waiting_calls_on_a_server_with_few_subscriptions(tmp_path: Path) -> None:
    """20 calls wait for results, and 20 watches for events, on a connection that may have eight subscriptions."""
    ended: set[str] = set()

    async def answer(message: Msg) -> None:
        workflow = json.loads(message.data)["workflowId"]
        about = {"tenantId": "acme", "workflowId": workflow, "type": "order", "queue": "default"}
        counters = dict.fromkeys(("attempt", "retries", "effects", "messages"), 0)
        status = "completed" if workflow in ended else "running"
        view = {**about, **counters, "createdAt": "2027-01-01T00:00:00.000Z", "status": status}
        await message.respond(json.dumps({"workflow": view, "hasWorkers": True, "result": 7, "effects": []}).encode())

    async with (
        NatsServer(tmp_path / "nats", "max_subscriptions: 8") as server,
        TimerClient.connect(server.url) as client,
    ):
        connection = await nats.connect(server.url)
        await connection.subscribe("timer.qry.v1.acme.get-workflow", cb=answer)
        await connection.flush()
        await connection.flush()  # the driver sends the first one before the subscription
        names = [f"order-{number}" for number in range(20)]
        results = [asyncio.ensure_future(client.workflows.result("acme", name)) for name in names]
        watches = [asyncio.ensure_future(anext(client.watch("acme"))) for _ in names]
        assert await client.workflows.get("acme", "order-1") is not None  # after the subscriptions of all
        ended.update(names)
        for name in names:
            body = json.dumps({"payload": {"workflowId": name}}).encode()
            await connection.publish("timer.evt.v1.acme.workflow-completed", body)
        await connection.publish("timer.evt.v1.acme.timer-expired", b'{"payload": {}}')
        async with asyncio.timeout(3):  # without the events, the calls look again after some seconds
            assert await asyncio.gather(*results) == [7] * 20
            assert await asyncio.gather(*watches) == [{"payload": {}}] * 20
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
        await client.schedule("acme", "call-1", LATER),
        await client.schedule("acme", "call-1", moved),
        await client.schedule("acme", "call-1", moved),
        await client.schedule("acme", "call-1", moved, data=[1]),
    ]
    await client.cancel("acme", "call-1")
    outcomes += [await client.schedule("acme", "call-1", PAST)]
    await until_state(client, State.REACHED)
    outcomes += [await client.schedule("acme", "call-1", LATER)]
    names = ["scheduled", "rescheduled", "unchanged", "updated", "scheduled", "ignored_reached"]
    assert [each.name for each in outcomes] == names
    for name in names:
        assert await counted(service, "ScheduleTimer", name) == names.count(name)
    reached = outcomes[-1].timer
    assert reached is not None
    assert reached.reached_at is not None
    assert (reached.state, reached.due_at) == (State.REACHED, PAST)


@ON_SQLITE
async def test_updated_data_is_what_fires(user: User, client: TimerClient) -> None:
    """A timer whose data changed before it was due fires once, with the newest data and the newest causation id."""
    soon = datetime.now(UTC) + timedelta(seconds=2)
    outcomes = [await client.schedule("acme", "call-1", soon, data=data) for data in (1, {"a": 2}, {"a": 2}, "last")]
    assert [each.name for each in outcomes] == ["scheduled", "updated", "unchanged", "updated"]
    assert [each.timer and each.timer.data for each in outcomes] == [1, {"a": 2}, {"a": 2}, "last"]
    await until_state(client, State.REACHED)
    (event,) = await user.read("TIMER_EVT")
    fired = json.loads(event.data)
    assert (fired["payload"]["data"], fired["causationId"]) == ("last", outcomes[-1].command_id)


async def test_schedule_of_a_failed_timer(user: User, client: TimerClient, service: Service) -> None:
    """ScheduleTimer on a Failed timer ends as scheduled, and the timer fires."""
    failed = await until_failed(user, client)
    assert failed.last_error is not None
    assert "message size exceeds maximum allowed" in failed.last_error
    outcome = await client.schedule("acme", "call-1", PAST)
    assert outcome.name == "scheduled"
    assert outcome.timer is not None
    assert (outcome.timer.attempt, outcome.timer.last_error) == (0, None)
    await until_state(client, State.REACHED)
    assert await counted(service, "ScheduleTimer", "scheduled") == 2


async def test_outcomes_of_cancel_timer(user: User, client: TimerClient, service: Service) -> None:
    """The reply and the metric show each outcome of CancelTimer."""
    await client.schedule("acme", "call-1", LATER)
    await client.schedule("acme", "call-2", PAST)
    await until_state(client, State.REACHED, "call-2")
    outcomes = [await client.cancel("acme", call) for call in ("call-1", "call-1", "call-2", "call-3")]
    names = ["cancelled", "unchanged", "already_reached", "not_found"]
    assert [each.name for each in outcomes] == names
    assert [each.timer.state if each.timer else None for each in outcomes] == [
        State.CANCELLED,
        State.CANCELLED,
        State.REACHED,
        None,
    ]
    for name in names:
        assert await counted(service, "CancelTimer", name) == 1
    assert await user.stored("TIMER_EVT") == 1


@ON_SQLITE
async def test_cancel_of_a_failed_timer(user: User, client: TimerClient, service: Service) -> None:
    """CancelTimer on a Failed timer ends as cancelled, and RetryTimer does not change that."""
    await until_failed(user, client)
    assert (await client.cancel("acme", "call-1")).name == "cancelled"
    assert (await client.retry("acme", "call-1")).name == "unchanged"
    assert (await until_state(client, State.CANCELLED)).state == State.CANCELLED


async def test_outcomes_of_retry_timer(user: User, client: TimerClient, service: Service) -> None:
    """RetryTimer fires a Failed timer and changes no other timer. The reply and the metric show each outcome."""
    await until_failed(user, client)
    await client.schedule("acme", "call-2", LATER)
    outcomes = [await client.retry("acme", "call-1")]
    await until_state(client, State.REACHED)
    outcomes += [await client.retry("acme", call) for call in ("call-2", "call-1", "call-3")]
    names = ["retried", "unchanged", "already_reached", "not_found"]
    assert [each.name for each in outcomes] == names
    for name in names:
        assert await counted(service, "RetryTimer", name) == 1
