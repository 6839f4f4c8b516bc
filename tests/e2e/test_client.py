"""The Python client, and with it every outcome, over the real broker and the real service."""

import asyncio
import json
import re
import runpy
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User, iso
from tests.harness.processes import NatsServer, Service, body
from timer_service.client import (
    CommandError,
    NewTimer,
    NoAnswerError,
    Outcome,
    QueryError,
    State,
    Timer,
    TimerClient,
)

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"
LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service that gives a refused row up at once."""
    async with Service(tmp_path / "service", broker.url, TIMER_MAX_ATTEMPTS="1", **stored) as running:
        yield running


@pytest.fixture
async def client(broker: NatsServer, service: Service) -> AsyncIterator[TimerClient]:
    async with TimerClient.connect(broker.url) as connected:
        yield connected


async def until_state(client: TimerClient, state: State, call: str = "call-1") -> Timer:
    """Wait until a timer has come to a state."""
    async with asyncio.timeout(10):
        while True:
            timer = await client.get("acme", call)
            if timer is not None and timer.state == state:
                return timer
            await asyncio.sleep(0.02)


async def until_failed(user: User, client: TimerClient) -> Timer:
    """Let the service give a timer up: its event is larger than the stream takes."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_msg_size=2_000))
    await client.schedule("acme", "call-1", PAST, data="x" * 3_000)
    failed = await until_state(client, State.FAILED)
    await user.js.update_stream(config.evolve(max_msg_size=-1))
    return failed


async def counted(service: Service, message_type: str, outcome: str) -> float:
    return await service.metric(f'timer_commands_received_total{{outcome="{outcome}",type="{message_type}"}}')


def test_the_guide_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/client.md does what it says."""
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
    assert "'Scheduled': 998" in lines[6]
    assert lines[7:9] == ["transitioned", "reminder: ask-for-help Call Kim."]
    assert lines[9:12] == ["started", "recorded", "let go: ['lint', 'publish']"]
    assert lines[12].startswith("TOO_LARGE [{'path': 'payload.data'")
    assert lines[13:] == ["fired: order-1/payment None"]


async def test_schedule_tells_the_timer(client: TimerClient) -> None:
    """The outcome of a command carries the timer as it stands, instants with their zone."""
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


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "singly"])
@ON_SQLITE
async def test_schedule_many(user: User, client: TimerClient, service: Service, *, atomic: bool) -> None:
    """Outcomes come back per timer and in order, whether or not the stream takes atomic batches."""
    config = (await user.js.stream_info("TIMER_CMD")).config
    assert config.allow_atomic
    await user.js.update_stream(config.evolve(allow_atomic=atomic))
    timers = [NewTimer("acme", f"call-{index}", LATER, data=index) for index in range(2_500)]
    timers[1_234] = NewTimer("acme", "call-1234", LATER, data="x" * 70_000)
    endings = await client.schedule_many([*timers, timers[0]])
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
    """A command that the stream does not store costs only itself."""
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.update_stream(config.evolve(max_msg_size=10_000))
    large = NewTimer("acme", "large", LATER, data="x" * 20_000)
    good = [NewTimer("acme", f"call-{index}", LATER) for index in range(3)]
    first, refused, *rest = await client.schedule_many([good[0], large, *good[1:]])
    assert isinstance(refused, NoAnswerError)
    assert "message size exceeds maximum allowed" in str(refused)
    assert [each.name for each in (first, *rest) if isinstance(each, Outcome)] == ["scheduled"] * 3


async def test_list_and_count(client: TimerClient) -> None:
    """The list comes page after page, in order of due time, filtered; the counts agree with it."""
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
    assert counts.by_state == {"Scheduled": 240, "Reached": 0, "Cancelled": 10, "Failed": 0}
    assert (counts.overdue, counts.exact, counts.oldest_due) == (0, True, due[10])
    assert (await client.count("nobody")).oldest_due is None


@ON_SQLITE
async def test_watch(client: TimerClient) -> None:
    """Events come as they are published, of one tenant or of all."""
    mine, all_of_them = client.watch("acme"), client.watch()
    first, any_first = asyncio.ensure_future(anext(mine)), asyncio.ensure_future(anext(all_of_them))
    await client.count("acme")  # the subscriptions went ahead of it on this connection
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
async def test_watch_runs(client: TimerClient) -> None:
    """Jobs are seen as they are let go."""
    first = asyncio.ensure_future(anext(client.runs.watch("acme")))
    await client.count("acme")  # the subscription went ahead of it on this connection
    await client.runs.start("acme", "push-1", [{"name": "lint"}, {"name": "publish", "needs": ["lint"]}])
    async with asyncio.timeout(5):
        event = await first
    assert (event["type"], event["payload"]["runId"], event["payload"]["jobName"]) == ("JobReady", "push-1", "lint")


NAIVE = datetime(2100, 1, 1)  # noqa: DTZ001 - the mistake
MISTAKES: dict[str, Any] = {
    "tenant ": lambda client: client.schedule("a.b", "call", LATER),
    "call ": lambda client: client.schedule("acme", "a\nb", LATER),
    "call must be 1 to 200": lambda client: client.cancel("acme", "x" * 201),
    "tenant must": lambda client: client.retry("", "call"),
    "due_at must carry": lambda client: client.schedule("acme", "call", NAIVE),
    "due_at must lie": lambda client: client.schedule("acme", "call", datetime(1969, 12, 31, tzinfo=UTC)),
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
}


@ON_SQLITE
async def test_mistakes_are_named_before_anything_is_sent(user: User, client: TimerClient) -> None:
    """Each wrong argument is a ValueError that names it, and no command has been stored."""
    for message, call in MISTAKES.items():
        with pytest.raises(ValueError, match=f"^{message}"):
            await call(client)
    assert await user.stored("TIMER_CMD") == 0


@ON_SQLITE
async def test_rejections(client: TimerClient, user: User) -> None:
    """What only the service can see is a CommandError with code and fields; a query it can't answer, a QueryError."""
    with pytest.raises(CommandError) as rejected:
        await client.schedule("acme", "call-1", LATER, data="x" * 70_000)
    assert (rejected.value.code, rejected.value.errors[0]["path"]) == ("TOO_LARGE", "payload.data")
    assert await user.stored("TIMER_DLQ") == 1
    with pytest.raises(QueryError) as refused:
        _ = [each async for each in client._link.pages("acme", "list-timers", {"cursor": "mine"}, "timers", 5)]
    assert (refused.value.code, refused.value.errors[0]["path"]) == ("INVALID_PAYLOAD", "cursor")


async def test_nobody_there(broker: NatsServer, tmp_path: Path) -> None:
    """Without a stream, a service or a server there is a NoAnswerError that says so."""
    async with TimerClient.connect(broker.url) as client:
        with pytest.raises(NoAnswerError, match="no stream takes commands"):
            await client.schedule("acme", "call-1", LATER)
        many = await client.schedule_many([NewTimer("acme", f"call-{index}", LATER) for index in range(10)])
        assert {type(each) for each in many} == {NoAnswerError}
        with pytest.raises(NoAnswerError, match="nobody answers queries"):
            await client.get("acme", "call-1")
        async with Service(tmp_path / "service", broker.url) as service:
            await service.terminate()
        with pytest.raises(NoAnswerError, match=r"no outcome within 0\.2 s; the command may be handled later"):
            await client.schedule("acme", "call-1", LATER, timeout_seconds=0.2)
        watching = asyncio.ensure_future(anext(client.watch()))
        await client._connection.flush()
        await broker.terminate()
        with pytest.raises(NoAnswerError, match="has ended"):
            await watching
        with pytest.raises(NoAnswerError):
            await client.schedule("acme", "call-1", LATER, timeout_seconds=1)
    with pytest.raises(NoAnswerError, match="can't connect"):
        async with TimerClient.connect(broker.url):
            pass


async def test_outcomes_of_schedule_timer(user: User, client: TimerClient, service: Service) -> None:
    """Each row of the outcome table for ScheduleTimer, by reply and by metric."""
    moved = LATER + timedelta(hours=1)
    told = [
        await client.schedule("acme", "call-1", LATER),
        await client.schedule("acme", "call-1", moved),
        await client.schedule("acme", "call-1", moved),
        await client.schedule("acme", "call-1", moved, data=[1]),
    ]
    await client.cancel("acme", "call-1")
    told += [await client.schedule("acme", "call-1", PAST)]
    await until_state(client, State.REACHED)
    told += [await client.schedule("acme", "call-1", LATER)]
    names = ["scheduled", "rescheduled", "unchanged", "updated", "scheduled", "ignored_reached"]
    assert [each.name for each in told] == names
    for name in names:
        assert await counted(service, "ScheduleTimer", name) == names.count(name)
    reached = told[-1].timer
    assert reached is not None
    assert reached.reached_at is not None
    assert (reached.state, reached.due_at) == (State.REACHED, PAST)


@ON_SQLITE
async def test_updated_data_is_what_fires(user: User, client: TimerClient) -> None:
    """A timer whose data changed before it was due fires once, with the newest data, under the newest command's id."""
    soon = datetime.now(UTC) + timedelta(seconds=2)
    told = [await client.schedule("acme", "call-1", soon, data=data) for data in (1, {"a": 2}, {"a": 2}, "last")]
    assert [each.name for each in told] == ["scheduled", "updated", "unchanged", "updated"]
    assert [each.timer and each.timer.data for each in told] == [1, {"a": 2}, {"a": 2}, "last"]
    await until_state(client, State.REACHED)
    (event,) = await user.read("TIMER_EVT")
    fired = json.loads(event.data)
    assert (fired["payload"]["data"], fired["causationId"]) == ("last", told[-1].command_id)


async def test_failed_timer_is_scheduled_anew(user: User, client: TimerClient, service: Service) -> None:
    """ScheduleTimer on a Failed timer: scheduled, and it fires."""
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
    """Each row of the outcome table for CancelTimer, by reply and by metric."""
    await client.schedule("acme", "call-1", LATER)
    await client.schedule("acme", "call-2", PAST)
    await until_state(client, State.REACHED, "call-2")
    told = [await client.cancel("acme", call) for call in ("call-1", "call-1", "call-2", "call-3")]
    names = ["cancelled", "unchanged", "already_reached", "not_found"]
    assert [each.name for each in told] == names
    assert [each.timer.state if each.timer else None for each in told] == [
        State.CANCELLED,
        State.CANCELLED,
        State.REACHED,
        None,
    ]
    for name in names:
        assert await counted(service, "CancelTimer", name) == 1
    assert await user.stored("TIMER_EVT") == 1


@ON_SQLITE
async def test_failed_timer_is_cancelled(user: User, client: TimerClient, service: Service) -> None:
    """CancelTimer on a Failed timer: cancelled, and RetryTimer does not bring it back."""
    await until_failed(user, client)
    assert (await client.cancel("acme", "call-1")).name == "cancelled"
    assert (await client.retry("acme", "call-1")).name == "unchanged"
    assert (await until_state(client, State.CANCELLED)).state == State.CANCELLED


async def test_outcomes_of_retry_timer(user: User, client: TimerClient, service: Service) -> None:
    """RetryTimer: a Failed timer is put back and fires; any other stays as it is; by reply and by metric."""
    await until_failed(user, client)
    await client.schedule("acme", "call-2", LATER)
    told = [await client.retry("acme", "call-1")]
    await until_state(client, State.REACHED)
    told += [await client.retry("acme", call) for call in ("call-2", "call-1", "call-3")]
    names = ["retried", "unchanged", "already_reached", "not_found"]
    assert [each.name for each in told] == names
    for name in names:
        assert await counted(service, "RetryTimer", name) == 1


@pytest.mark.parametrize(
    ("message_type", "message"),
    [("ScheduleTimer", "schedule-timer"), ("CancelTimer", "cancel-timer"), ("RetryTimer", "retry-timer")],
)
@ON_SQLITE
async def test_stale_command(
    message_type: str, message: str, user: User, client: TimerClient, service: Service
) -> None:
    """A command delivered after a newer one: ignored_stale, by reply and by metric, and the newer one stands."""
    due = {"dueAt": iso(int(time.time() * 1000))} if message_type == "ScheduleTimer" else {}
    old = body(message_type, "acme", {"tenantId": "acme", "serviceCallId": "call-1", **due})
    await service.kill()
    await user.until_nobody_pulls()
    inbox = await user.connection.subscribe(user.connection.new_inbox())
    await user.js.publish(f"timer.cmd.v1.acme.{message}", old, headers={"Timer-Reply-To": inbox.subject})
    # Taken away without settling it, the older command comes back after a negative acknowledgement, once the newer
    # one is handled.
    holding = await user.js.pull_subscribe("timer.cmd.v1.*.*", durable="timer-service", stream="TIMER_CMD")
    (older,) = await holding.fetch(1)
    await service.start()
    newer = await client.schedule("acme", "call-1", LATER)
    assert newer.name == "scheduled"
    await older.nak()
    assert json.loads((await inbox.next_msg(10)).data)["outcome"] == "ignored_stale"
    assert await counted(service, message_type, "ignored_stale") == 1
    assert await client.get("acme", "call-1") == newer.timer


@ON_SQLITE
async def test_stale_command_after_a_cancel(user: User, client: TimerClient, service: Service) -> None:
    """A ScheduleTimer delivered after a newer CancelTimer of a timer nobody knew does not revive it."""
    await service.kill()
    await user.until_nobody_pulls()
    command = body("ScheduleTimer", "acme", {"tenantId": "acme", "serviceCallId": "call-1", "dueAt": iso(0)})
    await user.js.publish("timer.cmd.v1.acme.schedule-timer", command)
    holding = await user.js.pull_subscribe("timer.cmd.v1.*.*", durable="timer-service", stream="TIMER_CMD")
    (older,) = await holding.fetch(1)
    await service.start()
    assert (await client.cancel("acme", "call-1")).name == "not_found"
    await older.nak()
    await user.until_handled()
    assert await counted(service, "ScheduleTimer", "ignored_stale") == 1
    assert await client.get("acme", "call-1") is None
