"""The command line with the real service."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.cli import Cli, statuses
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.spawn import spawn
from timer_service.client import NewTimer, TimerClient

LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service that buries a row after one failed attempt."""
    async with Service(tmp_path / "service", broker.url, TIMER_MAX_ATTEMPTS="1", **stored) as running:
        yield running


@pytest.fixture
async def client(broker: NatsServer, service: Service) -> AsyncIterator[TimerClient]:
    async with TimerClient.connect(broker.url) as connected:
        yield connected


async def test_life_of_a_timer(cli: Cli, service: Service) -> None:
    """schedule, get and cancel print what happened. A command without effect ends with 1 and the reason."""
    assert await cli.lines("timers", "schedule", "acme", "call-1", "--at", "2100-01-01T10:30:00+01:00") == [
        "scheduled: acme/call-1 (Scheduled, due 2100-01-01T09:30:00Z)"
    ]
    assert await cli.lines("timers", "schedule", "acme", "call-1", "--at", "2100-01-01T09:30:00Z", "--data", "[1]") == [
        "updated: acme/call-1 (Scheduled, due 2100-01-01T09:30:00Z)"
    ]
    name, state, due, *_ = await cli.lines("timers", "get", "acme", "call-1")
    assert (name, state.split()) == ("acme/call-1", ["state", "Scheduled"])
    assert due.startswith("  due at         2100-01-01T09:30:00.000Z (in ")
    assert (await cli.lines("timers", "cancel", "acme", "call-1"))[0].startswith("cancelled: acme/call-1 (Cancelled, ")
    assert (await cli.lines("timers", "retry", "acme", "call-1"))[0].endswith(": already in that state")
    for command, complaint in {
        "get": "not found: acme/nobody",
        "cancel": "not_found: acme/nobody: there is no such timer",
        "retry": "not_found: acme/nobody: there is no such timer",
    }.items():
        done = await cli.run("timers", command, "acme", "nobody")
        assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", complaint)


@ON_SQLITE
async def test_healthcheck(cli: Cli, service: Service, broker: NatsServer) -> None:
    """Healthcheck ends with 0 beside a service that is ready, and with 1 and the reason when the broker is away."""
    settings = {"TIMER_HTTP_PORT": str(service.port)}
    ready = await cli.run("healthcheck", **settings)
    await broker.terminate()
    await service.until_page("/readyz", 503)
    away = await cli.run("healthcheck", **settings)
    assert (ready.returncode, ready.stdout, ready.stderr) == (0, "ready\n", "")
    assert (away.returncode, away.stdout) == (1, "")
    assert away.stderr.startswith("not ready: commands, events, queries, requests: not connected to the broker")
    assert away.stderr.count("\n") == 1


RESOURCES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "timers": ("schedule --at 2100-01-01T09:30:00Z --data [1]", "timer", "cancel", {"data": [1], "state": "Scheduled"}),
    "signals": ("create --at 2100-01-01T12:00:00Z", "signal", "cancel", {"status": "active"}),
    "schedules": ("put --every PT1H30M --data 1", "schedule", "delete", {"every": "PT1H30M", "status": "active"}),
    "runs": ("start run.json", "run", "cancel", {"status": "running", "openJobs": 1}),
    "workflows": ("start order --input 1", "workflow", "cancel", {"status": "waiting", "type": "order"}),
}
"""What creates a resource, its field in the outcome, what ends it, and some of its fields."""


@ON_SQLITE
@pytest.mark.parametrize("resource", RESOURCES)
async def test_each_resource_for_machines(cli: Cli, service: Service, resource: str) -> None:
    """With --json each command prints one JSON document with the field names of the messages."""
    (cli.folder / "run.json").write_text('{"jobs": [{"name": "a"}]}')
    creation, field, end, fields = RESOURCES[resource]
    command, *options = creation.split()
    created = await cli.json(resource, command, "acme", "one", *options)
    assert created[field] | fields == created[field]
    document = await cli.json(resource, "get", "acme", "one")
    shown = document.get(field, document)
    assert shown | created[field] == shown
    (listed,) = await cli.json(resource, "list", "acme")
    assert shown | listed == shown
    assert await cli.json(resource, "list", "nobody") == []
    ended = await cli.json(resource, end, "acme", "one")
    assert ended["outcome"] in {"cancelled", "deleted"}
    assert (await cli.json(resource, end, "acme", "nobody", code=1))["outcome"] == "not_found"
    assert (await cli.run(resource, "get", "acme", "nobody", "--json")).returncode == 1


async def test_retry(cli: Cli, client: TimerClient, user: User) -> None:
    """The list shows the error of a Failed timer, and the timer fires after a retry."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_msg_size=2_000))
    await client.schedule("acme", "call-1", PAST, data="x" * 3_000)
    async with asyncio.timeout(10):
        while (await client.count("acme")).by_state["Failed"] == 0:
            await asyncio.sleep(0.02)
    _, line = await cli.lines("timers", "list", "acme", "--state", "failed")
    assert line.startswith("call-1  Failed  2020-01-01T00:00:00Z  ")
    assert line.endswith("  1        message size exceeds maximum allowed (10054)")
    await user.js.update_stream(config.evolve(max_msg_size=-1))
    assert (await cli.lines("timers", "retry", "acme", "call-1"))[0].startswith("retried: acme/call-1")
    await user.until_stored("TIMER_EVT", 1)


@ON_SQLITE
async def test_list(cli: Cli, client: TimerClient) -> None:
    """The list is aligned, ordered, filtered and limited. A warning on stderr has the cursor of the next page."""
    due = [LATER + timedelta(minutes=index) for index in range(120)]
    await client.schedule_many([NewTimer("acme", f"call-{index:03}", at) for index, at in enumerate(due)])
    done = await cli.run("timers", "list", "acme")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["CALL", "STATE", "DUE", "ATTEMPT", "LAST", "ERROR"]
    assert [row.split()[0] for row in rows] == [f"call-{index:03}" for index in range(50)]
    assert {row.index("Scheduled") for row in rows} == {head.index("STATE")}
    assert {row.index("2100-01-01T") for row in rows} == {head.index("DUE")}
    assert "\t" not in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr.startswith("There are more timers. Add --all for all of them, or --cursor ")
    cursor = done.stderr.split("--cursor ")[1].split()[0]
    next_page = await cli.json("timers", "list", "acme", "--limit", "70", "--cursor", cursor)
    assert [each["serviceCallId"] for each in next_page] == [f"call-{index:03}" for index in range(50, 120)]
    done = await cli.run("timers", "list", "acme", "--json")
    assert (len(json.loads(done.stdout)), cursor in done.stderr) == (50, True)
    done = await cli.run("timers", "list", "acme", "--json", "--all")
    assert (len(json.loads(done.stdout)), done.stderr) == (120, "")
    window = ["--due-after", due[7].isoformat(), "--due-before", due[9].isoformat()]
    assert [each["serviceCallId"] for each in await cli.json("timers", "list", "acme", *window)] == [
        "call-007",
        "call-008",
    ]
    assert await cli.json("timers", "list", "acme", "--state", "Reached") == []


@ON_SQLITE
async def test_life_of_a_signal(cli: Cli, service: Service, user: User) -> None:
    """The signal commands print what happened. A command without effect ends with 1 and the reason."""
    wait = "waits for blocked or failed"
    options = ["--item", "ticket-7", "--on", "blocked", "--on", "failed", "--note", "Call Kim."]
    assert await cli.lines("signals", "create", "acme", "help", *options) == [f"created: acme/help (active, {wait})"]
    assert await cli.lines("signals", "pause", "acme", "help") == [f"paused: acme/help (paused, {wait})"]
    assert await cli.lines("signals", "activate", "acme", "help") == [f"activated: acme/help (active, {wait})"]
    assert await cli.lines("signals", "transition", "acme", "ticket-7", "blocked") == ["transitioned: acme/ticket-7"]
    await user.until_stored("TIMER_EVT", 1)
    head, row = await cli.lines("signals", "list", "acme", "--status", "fired", "--item", "ticket-7")
    assert head.split() == ["SIGNAL", "STATUS", "LAST", "FIRED", "WAITS", "FOR", "(NOTE)"]
    assert row.startswith("help    fired   20")
    assert row.endswith("Z  ticket-7: blocked or failed (Call Kim.)")
    name, status, *_ = await cli.lines("signals", "get", "acme", "help")
    assert (name, status.split()) == ("acme/help", ["status", "fired"])
    head, row = await cli.lines("signals", "firings", "acme", "help")
    assert head.split() == ["FIRING", "STATUS", "CREATED", "CAUSE", "(TASK", "OR", "ERROR)"]
    _, status, _, item, *_, task = row.split()
    assert (status, item) == ("enqueued", "ticket-7:")
    head, row = await cli.lines("signals", "tasks", "acme", "ticket-7")
    assert head.split() == ["TASK", "CREATED", "SIGNAL"]
    assert (f"({row.split()[0]})", row.split()[2]) == (task, "help")
    assert (await cli.run("signals", "tasks", "acme", "ticket-8")).stderr == "no tasks\n"
    done = await cli.run("signals", "cancel", "acme", "help")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"already_fired: acme/help (fired, {wait}): it has fired\n"
    done = await cli.run("signals", "get", "acme", "nobody")
    assert (done.returncode, done.stderr) == (1, "not found: acme/nobody\n")


@ON_SQLITE
async def test_life_of_a_schedule(cli: Cli, service: Service) -> None:
    """The schedule commands print what happened, and slots in UTC and in the zone. Without effect they end with 1."""
    start, slot = "2100-01-01T00:00:00Z", "2100-01-01T08:00:00Z  Fri 2100-01-01 09:00:00 CET"
    put = ["put", "acme", "report", "--cron", "0 9 * * mon-fri", "--zone", "Europe/Berlin", "--start-at", start]
    (created,) = await cli.lines("schedules", *put, "--jitter", "5m", "--data", '{"to": "team"}')
    assert created.startswith(f"created: acme/report (active, next slot {slot}  in ")
    assert await cli.lines("schedules", "pause", "acme", "report") == ["paused: acme/report (paused)"]
    assert await cli.lines("schedules", *put, "--catch-up", "all", "--late-by", "90s", "--catch-up-limit", "7") == [
        "updated: acme/report (paused): it stays paused; `timer-service schedules resume` ends the pause"
    ]
    name, status, recurrence, *_, first, second = await cli.lines(
        "schedules", "get", "acme", "report", "--upcoming", "2"
    )
    assert (name, status, recurrence) == (
        "acme/report",
        "  status       paused",
        "  recurrence   0 9 * * MON-FRI in Europe/Berlin",
    )
    assert first.startswith(f"  {slot}  in ")
    assert second.startswith("  2100-01-04T08:00:00Z  Mon 2100-01-04 09:00:00 CET  in ")
    assert (await cli.lines("schedules", "resume", "acme", "report"))[0].startswith(
        "resumed: acme/report (active, next"
    )
    assert (await cli.lines("schedules", "trigger", "acme", "report"))[0].startswith("triggered: acme/report (active, ")
    head, row = await cli.lines("schedules", "list", "acme", "--status", "active")
    assert head.split() == ["SCHEDULE", "STATUS", "NEXT", "SLOT", "RECURRENCE"]
    assert row.startswith("report    active  2100-01-01T08:00:00Z  in ")
    assert row.endswith("  0 9 * * MON-FRI in Europe/Berlin")
    assert await cli.lines("schedules", "delete", "acme", "report") == ["deleted: acme/report"]
    assert await cli.lines("schedules", "pause", "acme", "report") == [
        "not_found: acme/report: there is no such schedule; if it is put later, it is paused"
    ]
    for arguments, complaint in {
        ("get", "acme", "report"): "not found: acme/report",
        ("trigger", "acme", "report"): "not_found: acme/report: there is no such schedule",
        ("put", "acme", "old", "--every", "1h", "--end-at", "2020-01-01T00:00:00Z"): (
            "ended: acme/old (ended: end_at): no slot is left, so it does not fire; give a later --end-at, or another "
            "--cron or --every"
        ),
        ("resume", "acme", "old"): "already_ended: acme/old (ended: end_at): it has ended",
    }.items():
        done = await cli.run("schedules", *arguments)
        assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", complaint)
    assert await cli.lines("schedules", "pause", "acme", "old") == [
        "already_ended: acme/old (ended: end_at): it has ended; if it is started again, it is paused"
    ]
    assert await cli.lines("schedules", "put", "acme", "old", "--every", "1h", "--end-at", "2020-01-01T00:00:00Z") == [
        "unchanged: acme/old (ended: end_at): it has ended and does not fire; delete it first to start it again"
    ]


@ON_SQLITE
async def test_backfill_of_a_schedule(cli: Cli, service: Service) -> None:
    """A backfill says what follows. A range in the future has no effect, and one that ends too early is refused."""
    await cli.lines("schedules", "put", "acme", "hourly", "--every", "1h")
    past, future = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    for begin, end, code, complaint in [
        (past, future, 0, "backfilling: acme/hourly (active, next slot "),
        (future, "2101-01-01T00:00:00Z", 1, "nothing_due: acme/hourly (active, next slot "),
        (future, past, 1, "to must be later than "),
    ]:
        span = ("--from", begin, "--to", end, "--limit", "5")
        done = await cli.run("schedules", "backfill", "acme", "hourly", *span, COLUMNS="200")
        printed = " ".join((done.stdout + done.stderr).replace("│", " ").split())
        assert (done.returncode, complaint in printed) == (code, True), printed


@ON_SQLITE
async def test_preview_of_a_schedule(cli: Cli, service: Service) -> None:
    """A preview prints slots in UTC and in the zone, also around a change of the clock."""
    cron = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--from", "2027-03-27T00:00:00Z"]
    lines = await cli.lines("schedules", "preview", "acme", *cron, "--count", "2")
    assert [line.partition("  in ")[0] for line in lines] == [
        "2027-03-27T01:30:00Z  Sat 2027-03-27 02:30:00 CET",
        "2027-03-28T01:00:00Z  Sun 2027-03-28 03:00:00 CEST",
    ]
    done = await cli.run("schedules", "preview", "acme", "--every", "1h", "--end-at", "2020-01-01T00:00:00Z")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no slots\n")


@ON_SQLITE
async def test_rejected_schedules(cli: Cli, service: Service) -> None:
    """A field that the service refuses is named, with what to write instead."""
    for arguments, complaint in {
        ("--cron", "0 25 * * *"): "cron the field hour is '25'; it allows `*`, 0 to 23, and",
        ("--cron", "@daily", "--zone", "Europe/Berln"): "zone 'Europe/Berln' is not a time zone",
        ("--every", "1h", "--late-by", "2d"): "catchUp.lateBy must be from PT1S to P1D",
    }.items():
        done = await cli.run("schedules", "put", "acme", "report", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert complaint in done.stderr


@pytest.mark.slow
@ON_SQLITE
async def test_watch_one_schedule(cli: Cli, client: TimerClient) -> None:
    """`schedules watch` prints the slots and the end of the named schedule until Ctrl-C."""
    output = cli.folder / "watched"
    watching = spawn(
        [*cli.program, "schedules", "watch", "acme", "tick"], output, environment=cli.settings, cwd=cli.folder
    )
    try:
        async with asyncio.timeout(30):
            while "acme/tick  ended: max_count" not in (output.read_text() if output.exists() else ""):
                for name in ("tick", "tock"):  # again, until the watch has subscribed
                    await client.schedules.delete("acme", name)
                    await client.schedules.put("acme", name, every=timedelta(seconds=1), max_count=1, data=name)
                await asyncio.sleep(1.5)
    finally:
        watching.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(watching.wait, PATIENCE_SECONDS)
    head, *lines = output.read_text().splitlines()
    assert head == "Waiting for events of tenant acme and schedule tick. Stop with Ctrl-C."
    assert re.fullmatch(r"\S+Z  acme/tick  slot \S+Z \(\+\d+ ms\)  \"tick\"", lines[0])
    assert (code, "tock" in output.read_text()) == (0, False)


@ON_SQLITE
async def test_life_of_a_run(cli: Cli, service: Service) -> None:
    """The commands of `runs` print outcomes. `runs get` prints the graph step by step."""
    (cli.folder / "run.json").write_text(
        json.dumps(
            {
                "groups": ["tests"],
                "jobs": [
                    {"name": "lint"},
                    {"name": "publish", "needs": ["lint", {"group": "tests"}]},
                    {"name": "notify", "needs": [{"job": "publish", "ifFailed": "run"}]},
                ],
            }
        )
    )
    (cli.folder / "tests.json").write_text(json.dumps({"jobs": [{"name": "unit", "needs": ["lint"]}]}))
    assert await cli.lines("runs", "start", "acme", "push-1", "run.json") == [
        "started: acme/push-1 (running, 3 open)",
    ]
    assert await cli.lines("runs", "get", "acme", "push-1") == [
        "acme/push-1  running  (3 pending)",
        "  not resolved: tests",
        "STEP  JOB      STATUS   NEEDS",
        "1     lint     ready",
        "2     publish  pending  lint, group tests",
        "3     notify   pending  publish (even if it fails)",
    ]
    await cli.lines("runs", "resolve", "acme", "push-1", "tests", "tests.json")
    assert await cli.lines("runs", "report", "acme", "push-1", "lint", "failed", "--outputs", '{"code": 1}') == [
        "recorded: acme/push-1 (running, 1 open)"
    ]
    assert (await cli.lines("runs", "get", "acme", "push-1"))[2:] == [
        "1     lint     failed",
        "2     unit     skipped  upstream_failed: lint",
        "3     publish  skipped  upstream_failed: lint",
        "4     notify   ready    publish (even if it fails)",
    ]
    await cli.lines("runs", "cancel", "acme", "push-1")
    head, row = await cli.lines("runs", "list", "acme", "--status", "cancelled")
    assert (head.split(), row.split()[:3]) == (
        ["RUN", "STATUS", "OPEN", "STARTED", "WHY"],
        ["push-1", "cancelled", "0"],
    )
    done = await cli.run("runs", "cancel", "acme", "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("not_found: acme/nobody: there is no such run\n")
    done = await cli.run("runs", "report", "acme", "push-1", "lint", "success")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "already_ended: acme/push-1 (cancelled, 0 open): the run or the job has already ended\n"


@ON_SQLITE
async def test_buried_events(cli: Cli, client: TimerClient, user: User) -> None:
    """An event that the broker refused is listed with the reason. A retry publishes it under the same id."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_msg_size=2_000))
    await client.runs.start("acme", "push-1", [{"name": "lint", "payload": "x" * 3_000}])
    async with asyncio.timeout(10):
        while not (found := [event async for event in client.events.buried("acme")]):
            await asyncio.sleep(0.02)
    _, row = await cli.lines("events", "list", "acme")
    assert row.split()[:2] == [found[0].event_id, "JobReady"]
    assert row.endswith(f"readyAt={found[0].about['readyAt']}  message size exceeds maximum allowed (10054)")
    (shown,) = await cli.json("events", "list", "acme")
    assert (shown["eventType"], shown["attempt"], shown["about"]["jobName"]) == ("JobReady", 1, "lint")
    await user.js.update_stream(config.evolve(max_msg_size=-1))
    assert await cli.lines("events", "retry", "acme", "--all") == [f"retried: acme/{found[0].event_id}"]
    await user.until_stored("TIMER_EVT", 1)
    (event,) = await user.read("TIMER_EVT")
    assert event.headers["Nats-Msg-Id"] == found[0].event_id
    done = await cli.run("events", "list", "acme")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no buried events\n")
    done = await cli.run("events", "retry", "acme", found[0].event_id)
    assert (done.returncode, done.stderr) == (1, f"not_found: acme/{found[0].event_id}\n")


async def test_version(cli: Cli) -> None:
    """--version prints the installed version."""
    assert await cli.lines("--version") == [f"timer-service {version('timer_service')}"]


@ON_SQLITE
async def test_rejected_and_unanswered(cli: Cli, broker: NatsServer, service: Service) -> None:
    """A rejection, a missing service and a missing broker end with 1 and different messages."""
    large = json.dumps("x" * 70_000)
    done = await cli.run("timers", "schedule", "acme", "call-1", "--in", "1h", "--data", large, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("timer-service: TOO_LARGE: ")
    await service.terminate()
    done = await cli.run("timers", "get", "acme", "call-1")
    assert (done.returncode, "is timer-service running?" in done.stderr) == (1, True)
    await broker.terminate()
    done = await cli.run("timers", "get", "acme", "call-1")
    assert (done.returncode, f"cannot connect to the broker at {broker.url}: " in done.stderr) == (1, True)


@pytest.mark.parametrize("stored", ["sqlite"], indirect=True)  # test_doctor_postgres.py has the other
async def test_doctor_beside_a_running_service(cli: Cli, service: Service, user: User, client: TimerClient) -> None:
    """Beside a healthy service doctor exits with 0. It changes nothing and needs no lock."""
    await client.schedule("acme", "call-1", LATER)  # this creates the consumer
    cli.settings["TIMER_HTTP_PORT"] = str(service.port)
    found = await statuses(cli, 0)
    assert found == {
        "flow of commands": "ok",
        "flow of events": "ok",
        "flow of queries": "ok",
        "flow of requests": "ok",
        "service": "ok",
        "broker": "ok",
        "permissions": "ok",
        "stream TIMER_CMD": "ok",
        "stream TIMER_EVT": "ok",
        "stream TIMER_DLQ": "ok",
        "consumer timer-service": "ok",
        "clock": "ok",
        "durability": "note",
        "sqlite": found["sqlite"],
        "schema": "ok",
    }
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_msgs=10_000_000, duplicate_window=10))
    done = await cli.run("doctor")
    assert done.returncode == 0
    assert "warn  stream TIMER_EVT: refuses messages at max_msgs = 10000000\n      Set max_bytes" in done.stdout
    assert "warn  stream TIMER_EVT: recognizes repeats for 0:00:10 only" in done.stdout
    assert (await service.page("/readyz"))[0] == 200


async def test_doctor_before_the_first_start(cli: Cli, broker: NatsServer) -> None:
    """Missing streams are a warning if the service creates them, otherwise a failure. Doctor creates nothing."""
    found = await statuses(cli, 0)
    assert (found["stream TIMER_CMD"], found["database"]) == ("warn", "warn")
    cli.settings["TIMER_MANAGE_STREAMS"] = "false"
    assert (await statuses(cli, 1))["stream TIMER_CMD"] == "fail"
    assert not (cli.folder / "service").exists()


@pytest.mark.parametrize("stored", ["sqlite"], indirect=True)  # test_doctor_postgres.py has the other
async def test_doctor_beside_a_stopped_service(cli: Cli, service: Service) -> None:
    """Doctor reads the schema of a closed file, creates no file beside it, and says that no service runs."""
    await service.terminate()
    before = sorted((cli.folder / "service").iterdir())
    found = await statuses(cli, 0)
    assert (found["schema"], found["consumer timer-service"], found["service"]) == ("ok", "warn", "note")
    assert sorted((cli.folder / "service").iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["sqlite"], indirect=True)
async def test_doctor_in_an_outage_of_the_database(cli: Cli, service: Service, user: User) -> None:
    """While the service runs without its database, doctor names the outage and does not say to start the service."""
    cli.settings["TIMER_HTTP_PORT"] = str(service.port)
    with service.locked_database():
        command = {"type": "CancelTimer", "tenantId": "acme", "payload": {"serviceCallId": "call-1"}}
        await user.js.publish("timer.cmd.v1.acme.cancel-timer", json.dumps(command).encode())
        await service.until_page("/readyz", 503)
        done = await cli.run("doctor")
    assert "fail  flow of commands: " in done.stdout
    assert "Start the service" not in done.stdout


async def test_doctor_without_a_broker(cli: Cli, broker: NatsServer) -> None:
    """An unreachable broker is a failure with the reason. The other checks still run."""
    await broker.terminate()
    done = await cli.run("doctor")
    assert done.returncode == 1
    assert f"fail  broker: cannot connect to {broker.url}: " in done.stdout
    assert "sqlite: SQLite 3" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" 1 failure, 1 note")


async def test_doctor_with_too_few_permissions(tmp_path: Path, cli: Cli) -> None:
    """The subjects that the user may not use are named."""
    rules = '{ publish: ["$SYS.REQ.USER.INFO", "$JS.API.>", "timer.evt.>"], subscribe: ">" }'
    users = f"authorization {{ users: [{{ user: svc, password: pass, permissions: {rules} }}] }}"
    async with NatsServer(tmp_path / "fenced", users) as server:
        done = await cli.run("doctor", TIMER_BROKER_URL=server.url, TIMER_NATS_USER="svc", TIMER_NATS_PASSWORD="pass")
    assert done.returncode == 1
    assert "fail  permissions: may not publish timer.dlq.v1.*.*, _INBOX.>\n" in done.stdout
