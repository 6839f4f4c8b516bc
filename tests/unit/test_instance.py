"""What an instance starts, serves and stops, with each role and after each fault. The broker is in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, PropertyMock, patch

import pytest

from tests.harness.builders import command_address, scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.instance import Instance, InstanceBroker
from tests.harness.memory_broker import MemoryBroker, MemoryRequests
from tests.harness.processes import read_page
from tests.harness.timers import put_timers
from tests.harness.waiting import until
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import QUERIES, SLICES, Workers
from timer_service.app.worker_requests import WorkerRequests
from timer_service.core.due.lease import Lease
from timer_service.core.due.loop import Loop
from timer_service.core.events import outbox
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.intake.reader import LogReader
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.requests.requests import Requests
from timer_service.core.service.slice import Parts
from timer_service.core.service.upkeep import Retention
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import DatabaseUnavailableError, StartError
from timer_service.core.values.message import Event, Position
from timer_service.core.values.raw_command import MESSAGE_ID
from timer_service.supervisor import Supervisor
from timer_service.timers.store import TIMERS
from timer_service.ui.instance import Instance as PageInstance
from timer_service.workflows.tasks.registry import WorkerRegistry
from timer_service.workflows.tasks.requests import handle_requests

DOWN = Health.down("it is away")
UPKEEP = {"clock", "file", "database", "clock-repair", "streams", "audit"}
HANDLING = {"tasks", "workflow-workers"}
WORKING = {
    *("timers", "cancellations", "firings", "evaluation", "schedules", "backfills", "outbox", "sweep", "dead-letters"),
    *("announcements", "workflow-deadlines", "workflow-keys", "event-limits", "row-counts"),
    *(f"{each}-retention" for each in ("timers", "signals", "schedules", "workflows", "runs", "events")),
}
LOOPS = {"all": UPKEEP | HANDLING | WORKING, "handler": UPKEEP | HANDLING, "worker": UPKEEP | WORKING}
RECEIVING = {"commands", "queries", "requests", "polls"}
TASKS_BESIDES = {"all": RECEIVING, "handler": RECEIVING, "worker": set[str]()}
FLOWS = {
    "all": {"commands", "events", "queries", "requests"},
    "handler": {"commands", "queries", "requests"},
    "worker": {"events"},
}
ROLES = ["all", "handler", "worker"]
REQUESTS = {"poll-tasks", "report-tasks", "renew-tasks", "get-effects"}
READY = dict.fromkeys([*FLOWS["all"], "service"], "ok")
POLL = b'{"workerId": "w", "types": ["order"], "slots": 1, "waitMs": 10000}'

NewInstance = Callable[..., Instance]


@pytest.fixture
def new(sqlite: SqliteDatabase, clock: ManualClock) -> NewInstance:
    return partial(Instance, sqlite, clock)


def task_names() -> list[str]:
    """Return the names of the running tasks that have one."""
    names = [each.get_name() for each in asyncio.all_tasks()]
    return sorted(each for each in names if not each.startswith(("Task-", "test_", "starlette")))


async def caught_up() -> None:
    await until(lambda: "catch-up" not in task_names())


@pytest.mark.parametrize("role", ROLES)
async def test_what_runs(new: NewInstance, role: str) -> None:
    """Each loop of a role runs, each task runs once, and all of them have ended when the instance has stopped.

    A role that handles commands opens their log, and serves the queries and requests of every slice.
    """
    instance = new(role=role)
    assert {flow for flow, health in instance.app.flows().items() if not health.usable} == FLOWS[role] - {"queries"}
    async with instance.running():
        await until(lambda: all(instance.passes(each) for each in LOOPS[role]))
        await caught_up()
        running = task_names()
        ready, live = await instance.page("/readyz"), await instance.page("/livez")
        served, reads = instance.broker.served, instance.broker.stored.owner is not None
    names = {Kind.QUERY: {each.name for each in QUERIES}, Kind.REQUEST: REQUESTS}
    assert (served, reads) == (({}, False) if role == "worker" else (names, True))
    assert running == sorted([*LOOPS[role], *TASKS_BESIDES[role], "http", "stop", "broker-lost"])
    assert (ready, live) == ((200, dict.fromkeys([*FLOWS[role], "service"], "ok")), (200, {"stalled": []}))
    assert (task_names(), instance.drains) == ([], 1)


async def test_disabled_workflows(new: NewInstance) -> None:
    """If workflows are disabled, no task and no loop serves workers, their requests are refused, and all is well."""
    instance = new(workflows_enabled=False)
    async with instance.running():
        reply = await instance.broker.request("poll-tasks", "acme", b"{}")
        running = set(task_names())
        await caught_up()
        status, _ = await instance.page("/readyz")
    assert (reply.code, status) == ("BUSY", 200)
    assert running.isdisjoint({"requests", "polls", "tasks", "workflow-workers", "workflow-deadlines", "workflow-keys"})


async def test_gauges_of_rows(new: NewInstance) -> None:
    """An instance counts the rows of every table that has due ones, and of each state, also of what is disabled."""
    instance = new(**{f"{each}_enabled": False for each in ("signals", "runs", "schedules", "workflows")})
    async with instance.running():
        await until(lambda: instance.passes("row-counts") > 0)
        samples = [each for metric in instance.registry.collect() for each in metric.samples]
    due = {"timer_schedules", "work_signal_firings", "outbox", "dead_letters", "schedules", "workflows"}
    assert {each.labels["table"] for each in samples if each.name == "timer_overdue"} == due
    assert len([each for each in samples if each.name == "timer_rows"]) == sum(len(each.counted) for each in SLICES)


def down(part: type, health: str = "health") -> AbstractContextManager[object]:
    """Let the parts of a type be down during the block."""
    return patch.object(part, health, new_callable=PropertyMock, return_value=DOWN)


async def test_fault_of_each_part(new: NewInstance) -> None:
    """The page /readyz says which flows a part has stopped that is down, and why. The others are fine."""
    instance = new()
    found, expected = {}, {}
    async with instance.running():
        await caught_up()
        broker = instance.broker
        faults: dict[str, tuple[AbstractContextManager[object], set[str]]] = {
            "broker": (down(InstanceBroker), FLOWS["all"]),
            "queries": (patch.object(MemoryRequests, "health", DOWN), {"queries", "requests"}),
            "command stream": (patch.dict(broker.streams.health, {Kind.COMMAND: DOWN}), {"commands"}),
            "event stream": (patch.dict(broker.streams.health, {Kind.EVENT: DOWN}), {"events"}),
            "writing": (down(SqliteDatabase), {"commands", "events", "requests"}),
            "reading": (down(SqliteDatabase, "read_health"), FLOWS["all"]),
            "reader": (down(LogReader), {"commands"}),
            "requests": (down(WorkerRequests), {"requests"}),
            "applying requests": (down(Requests), {"requests"}),
            "workers": (down(Workers), {"events"}),
        }
        for name, (fault, stopped) in faults.items():
            with fault:
                found[name] = await instance.page("/readyz")
            expected[name] = (503, {**READY, **dict.fromkeys(stopped, "it is away")})
    assert found == expected


async def test_what_hangs(new: NewInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page /livez fails and names the loops that hang, the reader, and a connection that is not read any more."""
    instance = new()
    async with instance.running():
        await caught_up()
        instance.broker.reading = False
        for each in (Loop, LogReader):
            monkeypatch.setattr(each, "stalled", True)
        status, page = await instance.page("/livez")
    assert (status, sorted(page["stalled"])) == (503, sorted([*LOOPS["all"], "commands", "broker-reader"]))


def end_task(_instance: Instance, name: str) -> None:
    (task,) = [each for each in asyncio.all_tasks() if each.get_name() == name]
    task.cancel()


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (
            lambda it: it.broker.lost.set_result("no server answers"),
            "the connection to the broker is closed and cannot be restored: no server answers",
        ),
        *((partial(end_task, name=name), f"a task ended unexpectedly: {name}") for name in ("http", "commands")),
        *((partial(end_task, name=name), f"a task ended unexpectedly: {name}") for name in ("timers", "polls")),
    ],
)
async def test_what_ends_an_instance(new: NewInstance, fail: Callable[[Instance], object], reason: str) -> None:
    """If an instance cannot go on, it drains, and its error says why."""
    instance = new()
    async with instance.running() as running:
        fail(instance)
        with pytest.raises(StartError) as error:
            await running
    assert (str(error.value), instance.drains) == (reason, 1)


async def add_due_timers(database: SqliteDatabase, *calls: str) -> None:
    async with database.transaction() as tx:
        await put_timers(tx, [scheduled(call, NOW, Position(0, 1)) for call in calls])


def block_publishing(monkeypatch: pytest.MonkeyPatch, until_ended: Callable[[], Awaitable[object]]) -> list[str]:
    """Make each publish last until something has ended. Return a list that gets how it ends."""
    ends: list[str] = []
    publish = MemoryBroker.publish

    async def slow(*given: Any) -> Any:
        ends.append("began")
        await until_ended()
        ends.append("done")
        return await publish(*given)

    monkeypatch.setattr(InstanceBroker, "publish", slow)
    return ends


@pytest.mark.parametrize(("timeout_ms", "waits"), [(60_000, True), (20, False)])
async def test_pass_during_the_end(
    new: NewInstance, sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, timeout_ms: int, *, waits: bool
) -> None:
    """An instance that stops waits for the pass of a loop, no longer than the shutdown timeout. /readyz says so."""
    shown = asyncio.Event()
    ends = block_publishing(monkeypatch, shown.wait)
    await add_due_timers(sqlite, "call-1")
    instance = new(shutdown_timeout=timeout_ms)
    async with asyncio.timeout(20), instance.running():
        await until(lambda: ends == ["began"])
        instance.app.stop()
        await until(lambda: instance.drains == 1)
        if waits:
            status, page = await instance.page("/readyz")
            assert (status, page["service"]) == (503, "draining")
            shown.set()
    assert ends == (["began", "done"] if waits else ["began"])
    shown.set()


async def test_nothing_more_is_taken_at_the_end(new: NewInstance, sqlite: SqliteDatabase) -> None:
    """At its end, an instance gives up the log and takes no more requests. It answers the polls that it holds."""
    instance = new()
    async with instance.running():
        asked = asyncio.create_task(instance.broker.request("poll-tasks", "acme", POLL))
        await until(lambda: instance.registry.get_sample_value("timer_polls_held") == 1)
    assert (await asked).body == b'{"tasks":[]}'
    with pytest.raises(IndexError):
        await instance.broker.request("poll-tasks", "acme", POLL)
    assert [row["reader"] for row in await sqlite.reader.fetch("SELECT reader FROM command_log")] == [None]


async def test_settings_of_the_parts(new: NewInstance) -> None:
    """The parts of an instance have its settings, each in its place and unit."""
    settings = {"batch_size": 7, "max_attempts": 8, "visibility_timeout": 90_000}
    with (
        patch("timer_service.app.service.Parts", wraps=Parts) as parts,
        patch("timer_service.app.slices.Retention", wraps=Retention) as retention,
    ):
        new(**settings, retention_days=9)
    with patch("timer_service.app.page.Instance", wraps=PageInstance) as page:
        new(role="worker", ui_enabled=True, http_host="localhost")
    shown = [page.call_args.kwargs[name] for name in ("role", "dead_letters", "http_host")]
    assert shown == ["worker", "TIMER_DLQ", "localhost"]
    found = {name: parts.call_args.kwargs[name] for name in settings}
    assert found == {**settings, "visibility_timeout": timedelta(seconds=90)}
    kept = {call.args[1] for call in retention.call_args_list}
    assert kept == {timedelta(days=9), timedelta(days=30)}  # parked events are kept at least 30 days


async def test_supervisor(new: NewInstance) -> None:
    """A supervisor learns whether an instance is ready and alive, as the pages say, and that it stops."""
    supervisor, instance = AsyncMock(spec=Supervisor), new()
    async with instance.running(supervisor):
        await caught_up()
        ready, alive = supervisor.report.call_args.kwargs.values()
        await until(ready)
        with down(SqliteDatabase):
            assert (ready(), alive()) == (False, True)
        instance.broker.reading = False
        assert (ready(), alive(), supervisor.stopping.call_count) == (True, False, 0)
    assert supervisor.stopping.call_count == 1


async def test_claims_of_the_process_before(new: NewInstance, sqlite: SqliteDatabase) -> None:
    """An instance that is alone with its database ends the claims of a killed process, in every table."""
    await add_due_timers(sqlite, "call-1")
    async with sqlite.transaction() as tx:
        await outbox.add(tx, [Event("event-1", "something.happened", "acme", {}, NOW)], NOW)
        for table in (TIMERS, outbox.OUTBOX):
            assert await Lease(table, timedelta(seconds=20)).claim(tx, NOW, 1, alone=True)
    instance = new()
    async with instance.running():
        await until(lambda: len(instance.broker.events) == 2)


@pytest.mark.parametrize(("setting", "handled"), [("start", 2), ("now", 1)])
async def test_where_a_new_database_begins(new: NewInstance, setting: str, handled: int) -> None:
    """An instance with a new database handles all commands of the log, or those from its first start on."""
    instance = new(commands_from=setting)
    instance.broker.send(command_address(), b"not JSON")
    async with instance.running():
        await caught_up()
        instance.broker.send(command_address("globex"), b"not JSON")
        await until(lambda: any("globex" in str(each) for each in instance.broker.dead_letters))
    assert len(instance.broker.dead_letters) == handled


async def test_failure_to_publish(new: NewInstance, sqlite: SqliteDatabase) -> None:
    """If an event cannot be published, the streams are checked at once. A rejected command is on the page."""
    instance = new(ui_enabled=True)
    instance.broker.has_no_room_for = lambda _: True
    instance.broker.send(command_address(), b"not JSON", {MESSAGE_ID: "rejected-1"})
    await add_due_timers(sqlite, "call-1")
    with patch.object(Loop, "wake", autospec=True, side_effect=Loop.wake) as wake:
        async with instance.running():
            await until(lambda: "streams" in {call.args[0].name for call in wake.call_args_list})
            await caught_up()
            _, page = await asyncio.to_thread(read_page, instance.config.http_port, "/ui/failed")
    assert "rejected-1" in page


@pytest.mark.parametrize("role", ROLES)
async def test_commands_from_before_the_start(new: NewInstance, role: str) -> None:
    """Until it is known that these are applied, nothing fires and no task is sent. Then all goes on."""
    held = LOOPS[role] - UPKEEP
    instance = new(role=role)
    instance.broker.stored.away = "the stream has no leader"
    async with instance.running():
        await until(lambda: all(instance.passes(each) for each in LOOPS[role] - held))
        before = {each for each in held if instance.passes(each)}
        events = instance.app.flows().get("events", HEALTHY).reason
        instance.broker.stored.away = None
        await until(lambda: all(instance.passes(each) for each in held))
        after = instance.app.flows().get("events", HEALTHY)
    assert (before, after) == (set(), HEALTHY)
    assert role == "handler" or "until the commands are handled that were stored before the start" in str(events)


async def test_start_without_the_database(new: NewInstance) -> None:
    """While it cannot be read which commands are applied, nothing fires."""
    instance = new()
    with patch.object(BacklogGate, "is_open", side_effect=DatabaseUnavailableError("it is away")) as is_open:
        async with instance.running():
            await until(lambda: is_open.call_count > 1)
            assert ("catch-up" in task_names(), instance.app.flows()["events"].usable) == (True, False)


async def test_requests_of_workers(new: NewInstance) -> None:
    """A request shows that its worker lives. Until the commands before it are handled, it lets no wait time out."""
    instance = new()
    instance.broker.stored.away = "the stream has no leader"
    request = b'{"workerId": "w", "tasks": [{"workflowId": "order-1", "token": "0123456789abcdef"}]}'
    handler = patch("timer_service.app.worker_requests.handle_requests", wraps=handle_requests)
    with handler as handle, patch.object(WorkerRegistry, "record") as record:
        async with instance.running():
            await instance.broker.request("renew-tasks", "acme", request)
            instance.broker.stored.away = None
            await caught_up()
            await instance.broker.request("renew-tasks", "acme", request)
    assert [call.kwargs["may_time_out"] for call in handle.call_args_list] == [False, True]
    assert [call.args for call in record.call_args_list] == [("acme", "w")] * 2


async def test_end_before_the_commands_from_before_the_start(new: NewInstance) -> None:
    """An instance that must stop before they are applied ends at once."""
    instance = new()
    instance.broker.stored.away = "the stream has no leader"
    async with asyncio.timeout(5), instance.running() as task:
        instance.app.stop()
        await task


async def test_wake_ups(new: NewInstance) -> None:
    """The dead letter of a command is published at once, and a hint of another instance wakes the loop it names."""
    with patch.object(SqliteDatabase, "exclusive", False):  # noqa: FBT003
        instance = new(polling_interval=3_600_000)
        async with instance.running():
            await until(lambda: all(instance.passes(each) for each in LOOPS["all"]))
            instance.broker.send(command_address(), b"not JSON")
            await until(lambda: bool(instance.broker.dead_letters))
            before = instance.passes("sweep")
            await instance.broker.hint("sweep", NOW)
            await until(lambda: instance.passes("sweep") > before)
