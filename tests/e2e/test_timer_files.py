"""Timers as files: export, import, what is wrong with a file, and an import that is interrupted."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.cli import Cli
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.spawn import spawn
from timer_service.client import NewTimer, TimerClient

LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)


def write(cli: Cli, *lines: Any) -> str:
    """Write a file for an import, and return its name."""
    (cli.folder / "timers.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return "timers.jsonl"


def timer(number: int, **fields: Any) -> dict[str, Any]:
    return {"serviceCallId": f"call-{number}", "dueAt": "2100-01-01T09:30:00.000Z", **fields}


@ON_SQLITE
async def test_export_and_import(cli: Cli, service: Service, broker: NatsServer) -> None:
    """An import of what another tenant exported makes the same timers: data, expiry, topic and correlation id too."""
    async with TimerClient.connect(broker.url) as client:
        await client.timers.schedule_many(
            [
                NewTimer("acme", "plain", LATER),
                NewTimer("acme", "null", LATER + timedelta(milliseconds=1), data=None),
                NewTimer(
                    "acme",
                    "full",
                    LATER + timedelta(days=1),
                    {"a": [1, 2.5, "ü"]},
                    topic="unpaid",
                    correlation_id="order-7",
                ),
                NewTimer("acme", "late", LATER + timedelta(days=2), late_by=timedelta(hours=1)),
                *(NewTimer("acme", f"bulk-{number:04}", LATER + timedelta(days=3)) for number in range(1_100)),
            ]
        )
        await client.timers.schedule("acme", "fired", datetime(2020, 1, 1, tzinfo=UTC))
    exported = await cli.lines("timers", "export", "acme")
    assert len(exported) == 1_104
    assert [json.loads(line) for line in exported[:4]] == [
        {"serviceCallId": "plain", "dueAt": "2100-01-01T09:30:00.000Z"},
        {"serviceCallId": "null", "dueAt": "2100-01-01T09:30:00.001Z", "data": None},
        {
            "serviceCallId": "full",
            "dueAt": "2100-01-02T09:30:00.000Z",
            "topic": "unpaid",
            "data": {"a": [1, 2.5, "ü"]},
            "correlationId": "order-7",
        },
        {"serviceCallId": "late", "dueAt": "2100-01-03T09:30:00.000Z", "expiresAt": "2100-01-03T10:30:00.000Z"},
    ]
    (cli.folder / "acme.jsonl").write_text("\n".join(exported) + "\n\n")
    assert await cli.lines("timers", "import", "globex", "acme.jsonl") == ["1,104 timers: 1,104 scheduled"]
    assert await cli.lines("timers", "export", "globex") == exported
    summary = await cli.json("timers", "import", "globex", "acme.jsonl")
    assert summary == {"timers": 1_104, "outcomes": {"unchanged": 1_104}, "failed": 0, "errors": []}


@ON_SQLITE
async def test_nothing_is_sent_if_a_line_is_wrong(cli: Cli, user: User, service: Service) -> None:
    """A file with wrong lines is not sent. Each fault names the file, the line and the field."""
    file = write(
        cli,
        timer(1),
        timer(2, dueAt="tomorrow"),
        {"dueAt": "2100-01-01T09:30:00Z", "colour": "red"},
        timer(4, dueIn="PT1H"),
        timer(5, expiresAt="2020-01-01T00:00:00Z", correlationId="", topic="Unpaid"),
        [1],
        timer(7, data="x" * 70_000),
        timer(8, tenantId="globex"),
    )
    with (cli.folder / file).open("a") as lines:
        lines.write("{\n" + "x" * 2_000_000)
    done = await cli.run("timers", "import", "acme", file)
    faults = done.stderr.splitlines()
    assert (done.returncode, done.stdout, faults[-1]) == (2, "", "Nothing was imported.")
    for start in (
        "timers.jsonl:2: dueAt must be an ISO 8601 instant with an offset",
        "timers.jsonl:3: serviceCallId is missing",
        "timers.jsonl:3: colour is not a known field",
        "timers.jsonl:4: dueIn cannot be used here: a second import would move the timer. Give dueAt",
        "timers.jsonl:5: expiresAt must be after dueAt",
        "timers.jsonl:5: correlationId must be 1 to 200 characters without control characters",
        "timers.jsonl:5: topic must be 1 to 64 lower-case letters",
        "timers.jsonl:6: (line) must be an object, such as {",
        "timers.jsonl:7: data ",
        "timers.jsonl:8: tenantId must be 'acme'",
        "timers.jsonl:9: (line) is not JSON",
        "timers.jsonl:10: (line) is longer than 1048576 bytes",
    ):
        assert [line for line in faults if line.startswith(start)], (start, faults)
    assert await user.stored("TIMER_CMD") == 0


async def test_lines_that_the_service_refuses(cli: Cli, tmp_path: Path, broker: NatsServer) -> None:
    """A timer that the service refuses is named with its line. The others are stored, and the exit code is 1."""
    limits = tmp_path / "limits.toml"
    limits.write_text("[default]\npending_timers = 2\n")
    file = write(cli, timer(1, lateBy="PT1H"), timer(2), timer(3))
    async with Service(tmp_path / "service", broker.url, TIMER_LIMITS_FILE=str(limits)):
        done = await cli.run("timers", "import", "acme", file)
        assert (done.returncode, done.stdout) == (1, "3 timers: 2 scheduled, 1 over_quota\n")
        assert done.stderr.startswith("timers.jsonl:3: over_quota: the tenant may have 2 of pending_timers; see ")
        summary = await cli.json("timers", "import", "acme", file, code=1)
        assert (await cli.json("timers", "get", "acme", "call-1"))["expiresAt"] == "2100-01-01T10:30:00.000Z"
    assert (summary["outcomes"], summary["failed"]) == ({"unchanged": 2, "over_quota": 1}, 1)
    assert summary["errors"][0]["line"] == 3


@ON_SQLITE
async def test_timers_that_have_fired(cli: Cli, service: Service) -> None:
    """A file can be imported again after its timers have fired."""
    file = write(cli, timer(1, dueAt="2020-01-01T00:00:00Z"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await cli.json("timers", "import", "acme", file))["outcomes"] != {"ignored_reached": 1}:
            pass


@ON_SQLITE
async def test_an_interrupted_import_is_resumed(cli: Cli, user: User, service: Service) -> None:
    """An import that is killed after a batch, of 1,000 timers, is repeated: the rest is stored, and nothing twice."""
    file = write(cli, *(timer(number) for number in range(1_200)))
    with service.locked_database():
        importing = spawn(
            [*cli.program, "timers", "import", "acme", file],
            cli.folder / "out",
            environment=cli.settings,
            cwd=cli.folder,
        )
        await user.until_stored("TIMER_CMD", 1_000)
        importing.send_signal(signal.SIGKILL)
        assert await asyncio.to_thread(importing.wait, PATIENCE_SECONDS) != 0
    assert await user.stored("TIMER_CMD") == 1_000
    summary = await cli.json("timers", "import", "acme", file)
    assert summary["outcomes"] == {"unchanged": 1_000, "scheduled": 200}
    assert (await cli.json("timers", "count", "acme"))["counts"]["Scheduled"] == 1_200
