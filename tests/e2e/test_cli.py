"""The command line with the real service."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.cases import case
from tests.harness.cli import Cli, statuses
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.spawn import spawn
from timer_service.client import NewTimer, TimerClient

LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service that buries a row after one failed attempt."""
    async with Service(tmp_path / "service", broker.url, TIMER_MAX_ATTEMPTS="1", **stored) as running:
        yield running


@pytest.fixture
async def client(broker: NatsServer, service: Service) -> AsyncIterator[TimerClient]:
    async with TimerClient.connect(broker.url) as connected:
        yield connected


SLOT = "2100-01-01T08:00:00Z  Fri 2100-01-01 09:00:00 CET"
PUT = "put acme a --cron 0_9_*_*_* --zone Europe/Berlin --start-at 2100-01-01T00:00:00Z"
LIVES: Mapping[str, Sequence[tuple[str, int, str]]] = {
    "timers": [
        (
            "schedule acme a --at 2100-01-01T10:30:00+01:00",
            0,
            "scheduled: acme/a (Scheduled, due 2100-01-01T09:30:00Z)",
        ),
        (
            "schedule acme a --at 2100-01-01T09:30:00Z --data [1] --topic unpaid",
            0,
            "updated: acme/a (Scheduled, due 2100-01-01T09:30:",
        ),
        ("list acme --topic unpaid", 0, "a      Scheduled  2100-01-01T09:30:00Z"),
        ("get acme a", 0, "topic          unpaid\n"),
        ("get acme a", 0, "due at         2100-01-01T09:30:00.000Z (in "),
        ("retry acme a", 0, "unchanged: acme/a\n"),
        ("count acme", 0, "Scheduled          1\n"),
        ("schedule acme now --in 0s", 0, "scheduled: acme/now ("),
        ("cancel acme a", 0, "cancelled: acme/a (Cancelled, "),
        ("cancel acme --prefix a", 0, "cancelling: acme/a: an event TimersCancelled follows"),
        ("cancel acme nobody", 1, "not_found: acme/nobody: there is no such timer\n"),
        ("get acme nobody", 1, "not found: acme/nobody\n"),
    ],
    "signals": [
        ("create acme a --item i --on x --on y --note N", 0, "created: acme/a (active, waits for x or y)"),
        ("pause acme a", 0, "paused: acme/a (paused, waits for x or y)"),
        ("activate acme a", 0, "activated: acme/a (active, "),
        ("list acme --status active --item i", 0, "i: x or y (N)\n"),
        ("transition acme i x", 0, "transitioned: acme/i\n"),
        ("firings acme a", 0, "  enqueued  "),
        ("tasks acme i", 0, "task-"),
        ("resolve acme nobody", 1, "not_found: acme/nobody: there is no such signal\n"),
    ],
    "schedules": [
        (PUT, 0, f"created: acme/a (active, next slot {SLOT}  in "),
        ("pause acme a", 0, "paused: acme/a (paused)\n"),
        (
            f"{PUT} --jitter 5m --catch-up all --late-by 90s --topic report",
            0,
            "updated: acme/a (paused): it stays paused; `timer-se",
        ),
        ("get acme a --upcoming 1", 0, f"upcoming 1   {SLOT} (in "),
        ("resume acme a", 0, "resumed: acme/a (active, next slot 2100-"),
        ("trigger acme a --data 1", 0, "triggered: acme/a (active, "),
        ("backfill acme a --from 2100-01-02T00:00:00Z --to 2101-01-01T00:00:00Z", 1, "nothing_due: acme/a (active, "),
        ("preview acme --cron 30_2_*_*_* --zone Europe/Berlin --from 2027-03-28T00:00:00Z", 0, "03:00:00 CEST"),
        (
            "put acme pay --calendar 2_weeks_from_2100-01-01T09:00 --zone Europe/Berlin",
            0,
            "created: acme/pay (active, next slot 2100-01-01T08:00:00Z  Fri 2100-01-01 09:00:00 CET",
        ),
        ("get acme pay", 0, "every 2 weeks from 2100-01-01T09:00:00 in Europe/Berlin\n"),
        (
            "put acme pay --calendar 2_weeks_from_2100-01-01T09:00Z",
            2,
            "--zone show it: '2 weeks from 2026-01-02T09:00'",
        ),
        ("delete acme pay", 0, "deleted: acme/pay\n"),
        ("list acme --status active --topic report", 0, "  0 9 * * * in Europe/Berlin\n"),
        ("get acme a", 0, "topic         report\n"),
        ("delete acme a", 0, "deleted: acme/a\n"),
        ("pause acme a", 0, "not_found: acme/a: there is no such schedule; if it is put later, it is paused"),
        (
            "put acme b --every 1h --end-at 2020-01-01T00:00:00Z",
            1,
            "ended: acme/b (ended: end_at): no slot is left",
        ),
        ("resume acme b", 1, "already_ended: acme/b (ended: end_at): it has ended\n"),
        ("put acme c --cron @daily --start order --input [1]", 0, "created: acme/c (active, "),
        ("get acme c", 0, "type order, queue default, input [1]"),
        (
            "put acme d --every 1h --late-by 2d",
            1,
            "timer-service: INVALID_PAYLOAD: catchUp.lateBy must be from PT1S",
        ),
    ],
    "runs": [
        ("start acme a run.json", 0, "started: acme/a (running, 3 open)\n"),
        ("resolve acme a tests tests.json", 0, "resolved: acme/a (running, 4 open)\n"),
        ("report acme a lint failed --outputs {}", 0, "recorded: acme/a (running, 1 open)\n"),
        (
            "get acme a",
            0,
            "3     publish  skipped  upstream_failed: lint\n4     notify   ready ",
        ),
        ("cancel acme a", 0, "cancelled: acme/a (cancelled, 0 open)\n"),
        ("start acme b circle.json", 1, "run_rejected: acme/b (rejected, 0 open): its graph cannot be run\n"),
        ("get acme b", 0, "  CYCLE: a > a\n"),
        ("list acme --status cancelled", 0, "a    cancelled  0     "),
        ("report acme a lint success", 1, "already_ended: acme/a (cancelled, 0 open): the run, the job or its attempt"),
        ("retry acme a", 0, "retried: acme/a (running, 4 open): its failed and cancelled jobs run again"),
        ("get acme a", 0, "acme/a  running, attempt 2  (4 pending)\n"),
        ("report acme a lint failed --attempt 1", 1, "already_ended: acme/a (running, "),
        ("report acme a lint failed --attempt 2", 0, "recorded: acme/a (running, "),
        ("start acme c clean.json", 0, "started: acme/c (running, 2 open)\n"),
        ("cancel acme c", 0, "cancelled: acme/c (cancelling, 1 open)\n"),
        ("get acme c", 0, "2     clean  ready      a (even if it fails), always\n"),
        ("retry acme c", 0, "unchanged: acme/c (cancelling, 1 open): already in that state\n"),
        ("list acme --status cancelling", 0, "c    cancelling  1     "),
        ("retry acme nobody", 1, "not_found: acme/nobody: there is no such run\n"),
    ],
}
"""Commands on a resource in their order, their exit codes, and a part of what each prints. `_` stands for a space."""


@ON_SQLITE
@pytest.mark.parametrize("resource", LIVES)
async def test_life_of_a_resource(cli: Cli, service: Service, resource: str) -> None:
    """Each command prints what happened. One without effect prints the reason on stderr, and ends with 1."""
    needs = {"publish": ["lint", {"group": "tests"}], "notify": [{"job": "publish", "ifFailed": "run"}], "lint": []}
    run = {"groups": ["tests"], "jobs": [{"name": name, "needs": needs[name]} for name in needs]}
    (cli.folder / "run.json").write_text(json.dumps(run))
    (cli.folder / "circle.json").write_text(json.dumps({"jobs": [{"name": "a", "needs": ["a"]}]}))
    always = [{"name": "a"}, {"name": "clean", "needs": ["a"], "always": True}]
    (cli.folder / "clean.json").write_text(json.dumps({"jobs": always}))
    (cli.folder / "tests.json").write_text(json.dumps({"jobs": [{"name": "unit", "needs": ["lint"]}]}))
    for arguments, code, text in LIVES[resource]:
        with case(arguments):
            done = await cli.run(resource, *(each.replace("_", " ") for each in arguments.split()))
            printed, other = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
            assert (done.returncode, text in printed, other) == (code, True, ""), done.stdout + done.stderr


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
    created[field].pop("upcoming", None)  # `get` computes more of them
    assert shown | created[field] == shown
    (listed,) = await cli.json(resource, "list", "acme")
    listed.pop("hasWorkers", None)
    assert shown | listed == shown
    assert await cli.json(resource, "list", "nobody") == []
    ended = await cli.json(resource, end, "acme", "one")
    assert ended["outcome"] in {"cancelled", "deleted"}
    assert (await cli.json(resource, end, "acme", "nobody", code=1))["outcome"] == "not_found"
    assert (await cli.run(resource, "get", "acme", "nobody", "--json")).returncode == 1


@ON_SQLITE
async def test_list(cli: Cli, client: TimerClient) -> None:
    """The list is aligned, ordered, filtered and limited. A warning on stderr has the cursor of the next page."""
    due = [LATER + timedelta(minutes=index) for index in range(120)]
    await client.timers.schedule_many([NewTimer("acme", f"call-{index:03}", at) for index, at in enumerate(due)])
    done = await cli.run("timers", "list", "acme")
    _, *rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows] == [f"call-{index:03}" for index in range(50)]
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
            while "scheduleId=tick  reason=max_count" not in (output.read_text() if output.exists() else ""):
                for name in ("tick", "tock"):  # again, until the watch has subscribed
                    await client.schedules.delete("acme", name)
                    await client.schedules.put("acme", name, every=timedelta(seconds=1), max_count=1, data=name)
                await asyncio.sleep(1.5)
    finally:
        watching.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(watching.wait, PATIENCE_SECONDS)
    head, *lines = output.read_text().splitlines()
    broker = f"{cli.settings['TIMER_BROKER_URL']} (TIMER_BROKER_URL)"
    assert head == f"Waiting for events of tenant acme and schedule tick at {broker}. Stop with Ctrl-C."
    assert re.match(r"\S+Z  ScheduleFired  acme  scheduleId=tick  ", lines[0])
    assert (code, "tock" in output.read_text()) == (0, False)


@ON_SQLITE
async def test_watch_workflows(cli: Cli, client: TimerClient) -> None:
    """`workflows watch` prints the ends of the workflows of a tenant until Ctrl-C."""
    output = cli.folder / "watched"
    watching = spawn([*cli.program, "workflows", "watch", "acme"], output, environment=cli.settings, cwd=cli.folder)
    try:
        async with asyncio.timeout(30):
            for number in count():  # again, until the watch has subscribed
                if "workflowId=order-" in (output.read_text() if output.exists() else ""):
                    break
                await client.workflows.start("acme", f"order-{number}", "order")
                await client.workflows.cancel("acme", f"order-{number}", reason="sold out")
                await asyncio.sleep(0.1)
    finally:
        watching.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(watching.wait, PATIENCE_SECONDS)
    _, line, *_ = output.read_text().splitlines()
    assert (code, "WorkflowCancelled  acme  workflowId=order-" in line, "reason=sold out" in line) == (0, True, True)


async def test_failed_timers(cli: Cli, broker: NatsServer, tmp_path: Path, user: User) -> None:
    """All Failed timers are retried together, or those whose ids begin with a prefix."""
    async with Service(tmp_path / "service", broker.url):
        pass
    config = (await user.js.stream_info("TIMER_EVT")).config
    settings = {"TIMER_MAX_ATTEMPTS": "1", "TIMER_MANAGE_STREAMS": "false"}  # it would repair the stream
    async with (
        Service(tmp_path / "service", broker.url, **settings),
        TimerClient.connect(broker.url) as client,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await user.js.update_stream(config.evolve(max_msg_size=2_000))
        for name in ("a-1", "a-2", "b-1"):
            await client.timers.schedule("acme", name, due_in=timedelta(), data="x" * 3_000)
        while len([timer async for timer in client.timers.list("acme", state="Failed")]) < 3:
            await asyncio.sleep(0.02)
        await user.js.update_stream(config)
        retried = await cli.lines("timers", "retry", "acme", "--failed", "--prefix", "a-")
        assert sorted(retried) == ["retried: acme/a-1", "retried: acme/a-2"]
        (outcome,) = await cli.json("timers", "retry", "acme", "--failed")
        assert (outcome["timerId"], outcome["outcome"], outcome["timer"]["attempt"]) == ("b-1", "retried", 0)
        done = await cli.run("timers", "retry", "acme", "--failed")
        assert (done.returncode, done.stderr) == (0, "no failed timers\n")
        await user.until_stored("TIMER_EVT", 3)
    for wrong in ((), ("a-1", "--failed"), ("a-1", "--prefix", "a")):
        assert (await cli.run("timers", "retry", "acme", *wrong)).returncode == 2


@ON_SQLITE
async def test_failed_workflows(cli: Cli, client: TimerClient) -> None:
    """All failed workflows are retried together, or those whose ids begin with a prefix."""
    for name in ("a-1", "a-2", "b-1"):
        await client.workflows.start("acme", name, "order", deadline_in=timedelta())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len([each async for each in client.workflows.list("acme", status="failed")]) < 3:
            await asyncio.sleep(0.02)
    retried = await cli.lines("workflows", "retry", "acme", "--failed", "--prefix", "a-")
    assert sorted(retried) == ["retried: acme/a-1", "retried: acme/a-2"]
    (outcome,) = await cli.json("workflows", "retry", "acme", "--failed", "--deadline-in", "1h")
    assert (outcome["workflowId"], outcome["outcome"], outcome["workflow"]["status"]) == ("b-1", "retried", "waiting")
    done = await cli.run("workflows", "retry", "acme", "--failed")
    assert (done.returncode, done.stderr) == (0, "no failed workflows\n")
    done = await cli.run("workflows", "retry", "acme", "a-1", "nobody")
    assert (done.returncode, done.stdout, done.stderr) == (1, "unchanged: acme/a-1\n", "not_found: acme/nobody\n")


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


@ON_SQLITE
async def test_parked_events(cli: Cli, client: TimerClient, user: User) -> None:
    """An event that a consumer parks is listed and shown with the reason. A resubmit publishes it to this consumer."""
    await client.timers.schedule("acme", "order-1", due_in=timedelta(), data={"order": 1})
    await user.until_stored("TIMER_EVT", 1)
    (stored,) = await user.read("TIMER_EVT")
    event = json.loads(stored.data)
    for consumer in ("orders", "billing"):
        outcome = await client.events.park("acme", consumer, event, reason="ValueError: no such order", attempts=5)
        assert outcome.name == "parked"
    for options, consumers in (((), ["orders", "billing"]), (("--consumer", "billing"), ["billing"])):
        _, *rows = await cli.lines("events", "parked", "acme", *options)
        assert [row.split()[:3] for row in rows] == [[each, event["id"], "DueTimeReached"] for each in consumers]
        assert all(row.endswith("ValueError: no such order") for row in rows)
    (shown, _) = await cli.json("events", "parked", "acme", "--all")
    assert (shown["attempts"], shown["about"]["serviceCallId"]) == (5, "order-1")
    assert (await cli.json("events", "show", "acme", "orders", event["id"]))["event"] == event
    lines = await cli.lines("events", "show", "acme", "orders", event["id"])
    assert (lines[0], json.loads(lines[-1])) == (f"acme/orders/{event['id']}", event)
    name = f"acme/orders/{event['id']}"
    assert await cli.lines("events", "resubmit", "acme", "orders", "--all") == [f"resubmitted: {name}"]
    await user.until_stored("TIMER_EVT", 2)
    again = (await user.read("TIMER_EVT"))[-1]
    assert (again.subject, json.loads(again.data)) == ("timer.evt.v1.acme.resubmitted.orders", event)
    assert again.headers["Nats-Msg-Id"] != event["id"]
    for command in ("resubmit", "drop", "show"):
        done = await cli.run("events", command, "acme", "orders", event["id"])
        assert done.returncode == 1
        assert done.stderr.strip().replace("_", " ") == f"not found: {name}"
    assert await cli.lines("events", "drop", "acme", "billing", event["id"]) == [f"dropped: acme/billing/{event['id']}"]
    done = await cli.run("events", "resubmit", "acme", "billing", "--all")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no parked events\n")


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


@ON_SQLITE
async def test_doctor_beside_a_running_service(cli: Cli, service: Service, user: User, client: TimerClient) -> None:
    """Beside a healthy service doctor exits with 0. It changes nothing and needs no lock."""
    await client.timers.schedule("acme", "call-1", LATER)  # this creates the consumer
    cli.settings["TIMER_HTTP_PORT"] = str(service.port)
    found = await statuses(cli, 0)
    assert {name for name, status in found.items() if status != "ok"} <= {"durability", "sqlite"}
    assert {"flow of commands", "broker", "permissions", "stream TIMER_DLQ", "clock", "schema"} <= found.keys()
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
    assert (found["stream TIMER_CMD"], found["database"]) == ("warn", "note")
    cli.settings["TIMER_MANAGE_STREAMS"] = "false"
    assert (await statuses(cli, 1))["stream TIMER_CMD"] == "fail"
    assert not (cli.folder / "service").exists()


@ON_SQLITE
async def test_doctor_beside_a_stopped_service(cli: Cli, service: Service) -> None:
    """Doctor reads the schema of a closed file, creates no file beside it, and says that no service runs."""
    await service.terminate()
    before = sorted((cli.folder / "service").iterdir())
    found = await statuses(cli, 0)
    assert (found["schema"], found["consumer timer-service"], found["service"]) == ("ok", "warn", "note")
    assert sorted((cli.folder / "service").iterdir()) == before


async def test_doctor_without_a_broker(cli: Cli, broker: NatsServer) -> None:
    """An unreachable broker is a failure with the reason. The other checks still run."""
    await broker.terminate()
    done = await cli.run("doctor")
    assert done.returncode == 1
    assert f"fail  broker: cannot connect to {broker.url}: " in done.stdout
    assert "sqlite: SQLite 3" in done.stdout
    assert " 1 failure, " in done.stdout.splitlines()[-1]


async def test_doctor_with_too_few_permissions(tmp_path: Path, cli: Cli) -> None:
    """The subjects that the user may not use are named."""
    rules = '{ publish: ["$SYS.REQ.USER.INFO", "$JS.API.>", "timer.evt.>"], subscribe: ">" }'
    users = f"authorization {{ users: [{{ user: svc, password: pass, permissions: {rules} }}] }}"
    async with NatsServer(tmp_path / "fenced", users) as server:
        login = {"TIMER_BROKER_USER": "svc", "TIMER_BROKER_PASSWORD": "pass"}
        done = await cli.run("doctor", TIMER_BROKER_URL=server.url, **login)
    assert done.returncode == 1
    assert "fail  permissions: may not publish timer.dlq.v1.*.*, _INBOX.>\n" in done.stdout
