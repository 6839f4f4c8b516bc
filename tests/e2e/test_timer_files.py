"""Timers as files: export, import, what is wrong with a file, and an import that is interrupted."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.cli import Cli
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.spawn import spawn
from timer_service.cli.timer_files import import_timers
from timer_service.client import NewTimer, NoAnswerError, Outcome, TimerClient

LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)


def write(cli: Cli, *lines: Any) -> str:
    """Write a file for an import, and return its name."""
    (cli.folder / "timers.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return "timers.jsonl"


def timer(number: int, **fields: Any) -> dict[str, Any]:
    return {"serviceCallId": f"call-{number}", "dueAt": "2100-01-01T09:30:00.000Z", **fields}


@ON_SQLITE
async def test_export_and_import(cli: Cli, service: Service, broker: NatsServer) -> None:
    """An import of what another tenant exported makes the same timers: data, expiry and correlation id too."""
    async with TimerClient.connect(broker.url) as client:
        await client.schedule_many(
            [
                NewTimer("acme", "plain", LATER),
                NewTimer("acme", "null", LATER + timedelta(milliseconds=1), data=None),
                NewTimer("acme", "full", LATER + timedelta(days=1), {"a": [1, 2.5, "ü"]}, correlation_id="order-7"),
                NewTimer("acme", "late", LATER + timedelta(days=2), late_by=timedelta(hours=1)),
                *(NewTimer("acme", f"bulk-{number:04}", LATER + timedelta(days=3)) for number in range(1_100)),
            ]
        )
        await client.schedule("acme", "fired", datetime(2020, 1, 1, tzinfo=UTC))
    exported = await cli.lines("timers", "export", "acme")
    assert len(exported) == 1_104
    assert [json.loads(line) for line in exported[:4]] == [
        {"serviceCallId": "plain", "dueAt": "2100-01-01T09:30:00.000Z"},
        {"serviceCallId": "null", "dueAt": "2100-01-01T09:30:00.001Z", "data": None},
        {
            "serviceCallId": "full",
            "dueAt": "2100-01-02T09:30:00.000Z",
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
        timer(5, expiresAt="2020-01-01T00:00:00Z", correlationId=""),
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
    file = write(cli, timer(1), timer(2), timer(3))
    async with Service(tmp_path / "service", broker.url, TIMER_LIMITS_FILE=str(limits)):
        done = await cli.run("timers", "import", "acme", file)
        assert (done.returncode, done.stdout) == (1, "3 timers: 2 scheduled, 1 over_quota\n")
        assert done.stderr.startswith("timers.jsonl:3: over_quota: the tenant may have 2 of pending_timers; see ")
        summary = await cli.json("timers", "import", "acme", file, code=1)
    assert (summary["outcomes"], summary["failed"]) == ({"unchanged": 2, "over_quota": 1}, 1)
    assert summary["errors"][0]["line"] == 3


@ON_SQLITE
async def test_an_interrupted_import_is_resumed(cli: Cli, user: User, service: Service) -> None:
    """An import that is killed after a batch, of 8 MiB at most, is repeated: the rest is stored, and nothing twice."""
    file = write(cli, *(timer(number, data="x" * 60_000) for number in range(200)))
    with service.locked_database():
        importing = spawn(
            [*cli.program, "timers", "import", "acme", file],
            cli.folder / "out",
            environment=cli.settings,
            cwd=cli.folder,
        )
        await user.until_stored("TIMER_CMD", 139)
        importing.send_signal(signal.SIGKILL)
        assert await asyncio.to_thread(importing.wait, PATIENCE_SECONDS) != 0
    assert await user.stored("TIMER_CMD") == 139
    summary = await cli.json("timers", "import", "acme", file)
    assert summary["outcomes"] == {"unchanged": 139, "scheduled": 61}
    assert (await cli.json("timers", "count", "acme"))["counts"]["Scheduled"] == 200


async def test_answers_that_did_not_come(tmp_path: Path) -> None:
    """If some of the answers do not come, the error says how many timers were handled."""

    class Client(TimerClient):
        def __init__(self) -> None:
            pass

        async def schedule_many(self, timers: Sequence[NewTimer], **_: Any) -> Sequence[Outcome | NoAnswerError]:
            stored = [Outcome(command_id="c", name="scheduled") for _ in timers]
            return [*stored[:-1], NoAnswerError("away")]

    file = tmp_path / "timers.jsonl"
    file.write_text("".join(f"{json.dumps(timer(number))}\n" for number in range(3)))
    with pytest.raises(NoAnswerError, match=r"^away; at least 2 of 3 timers of .* were handled\. Import"):
        await import_timers(Client(), "acme", file)


async def test_batches_are_bounded(tmp_path: Path) -> None:
    """A batch has at most 5,000 timers and 8 MiB."""
    sizes: list[int] = []

    class Client(TimerClient):
        def __init__(self) -> None:
            pass

        async def schedule_many(self, timers: Sequence[NewTimer], **_: Any) -> Sequence[Outcome | NoAnswerError]:
            sizes.append(len(timers))
            return [Outcome(command_id="c", name="scheduled") for _ in timers]

    file = tmp_path / "timers.jsonl"
    small, large = json.dumps(timer(1)), json.dumps(timer(1, data="x" * 60_000))
    file.write_text(f"{small}\n" * 5_001 + f"{large}\n" * 150)
    await import_timers(Client(), "acme", file)
    assert sizes == [5_000, 140, 11]


async def test_an_import_without_an_answer(cli: Cli, broker: NatsServer) -> None:
    """If no stream takes the commands, the import ends with the reason and says that it can be repeated."""
    done = await cli.run("timers", "import", "acme", write(cli, timer(1)))
    assert (done.returncode, done.stdout) == (1, "")
    assert "at least 0 of 1 timers of timers.jsonl were handled. Import the file again: " in done.stderr


@pytest.mark.slow
@ON_SQLITE
async def test_the_bar_is_for_terminals(cli: Cli, service: Service) -> None:
    """A progress bar is drawn on a terminal, without colours if NO_COLOR is set, and nowhere else."""
    write(cli, *(timer(number) for number in range(10)))
    command = [sys.executable, "-m", "timer_service", "timers", "import", "acme", "timers.jsonl"]
    for settings, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        terminal, stderr = pty.openpty()
        environment = {**os.environ, **cli.settings, "TERM": "xterm", **settings}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=cli.folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
        output, _ = await process.communicate()
        os.close(stderr)
        drawn = os.read(terminal, 100_000).decode()
        os.close(terminal)
        assert output.startswith(b"10 timers: ")
        assert "Importing" in drawn
        assert ("\x1b[3" in drawn) is coloured
