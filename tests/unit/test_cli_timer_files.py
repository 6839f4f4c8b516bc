"""An import of timers without a service: no answer, refused timers, and a file with many faults."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
import typer

from timer_service.cli.timer_files import import_timers
from timer_service.client import CommandError, NoAnswerError, Outcome


def _timer(number: int) -> dict[str, Any]:
    return {"serviceCallId": f"call-{number}", "dueAt": "2100-01-01T09:30:00.000Z"}


async def test_import_without_an_answer(tmp_path: Path) -> None:
    """If the service does not answer for a timer, the error says how many were handled, and what to do."""
    (file := tmp_path / "timers.jsonl").write_text("".join(f"{json.dumps(_timer(number))}\n" for number in (1, 2)))
    ended = [Outcome(command_id="1", name="scheduled"), NoAnswerError("no outcome within 120 s")]
    with pytest.raises(NoAnswerError, match=r"120 s; at least 1 of 2 timers were handled\. Import the file again: "):
        await import_timers(MagicMock(**{"timers.schedule_many": AsyncMock(return_value=ended)}), "acme", file)


async def test_rejected_timers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rejected timers are counted, and the first thousand are named."""
    lines = "".join(f"{json.dumps(_timer(number))}\n" for number in range(1_200))
    (file := tmp_path / "timers.jsonl").write_text(lines)
    ended = [[CommandError("BUSY", "later")] * count for count in (1_000, 200)]
    client = MagicMock(**{"timers.schedule_many": AsyncMock(side_effect=ended)})
    with pytest.raises(typer.Exit) as exited:
        await import_timers(client, "acme", file, as_json=True)
    summary = json.loads(capsys.readouterr().out)
    found = exited.value.exit_code, summary["outcomes"], summary["failed"], len(summary["errors"])
    assert found == (1, {"rejected": 1_200}, 1_200, 1_000)


async def test_file_with_many_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first twenty faults are named."""
    (file := tmp_path / "timers.jsonl").write_text("[1]\n" * 30)
    with pytest.raises(typer.Exit):
        await import_timers(MagicMock(), "acme", file)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[20:]) == (22, ["There are more faults.", "Nothing was imported."])


async def test_a_line_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one fault, and the lines after it keep their numbers."""
    lines = [json.dumps(_timer(1)), "x" * 5_000_000, json.dumps(_timer(2)), "[1]", "y" * 1_048_576]
    (file := tmp_path / "timers.jsonl").write_text("\n".join(lines))
    with pytest.raises(typer.Exit):
        await import_timers(MagicMock(), "acme", file)
    faults = [line.removeprefix(f"{file}:").partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert faults == ["2", "4", "5", "Nothing was imported."]
