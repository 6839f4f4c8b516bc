"""What the log of a service shows, and how: the format, the level, and the fields of a line."""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from timer_service.config import Config
from timer_service.logs import configure_logs
from timer_service.worker.errors import HiddenTextError

LEVELS = ("debug", "info", "warning", "error")


@pytest.fixture(autouse=True)
def fresh_logging() -> Iterator[None]:
    root, library = logging.getLogger(), logging.getLogger("aiosqlite")
    before = root.handlers, root.level, library.level
    yield
    root.handlers, root.level, library.level = before


def shown(capsys: pytest.CaptureFixture[str], **settings: Any) -> str:
    """Return what the log shows of a line for each level, and of the lines of the driver of SQLite."""
    configure_logs(Config.model_validate(settings))
    for level in LEVELS:
        logging.getLogger("timer_service.test").log(
            getattr(logging, level.upper()), "a line", extra={"level_of": level}
        )
        logging.getLogger("aiosqlite").log(getattr(logging, level.upper()), "of the driver")
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


@pytest.mark.parametrize("level", LEVELS)
def test_level(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The log has the lines of the configured level and above, of SQLite's driver only warnings and errors."""
    lines = [json.loads(line) for line in shown(capsys, log_level=level, log_format="json").splitlines()]
    least = LEVELS.index(level)
    assert [line["level_of"] for line in lines if line["event"] == "a line"] == list(LEVELS[least:])
    assert [line["level"] for line in lines if line["event"] == "of the driver"] == list(LEVELS[max(least, 2) :])


def test_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of JSON has a text, a level, its logger, an instant in UTC, and its own fields. Nothing else."""
    line = json.loads(shown(capsys, log_level="error", log_format="json").splitlines()[0])
    at = datetime.fromisoformat(line.pop("timestamp"))
    assert line == {"event": "a line", "level": "error", "logger": "timer_service.test", "level_of": "error"}
    assert at.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("wanted", "terminal", "is_json"),
    [("json", True, True), ("console", False, False), (None, True, False), (None, False, True)],
)
def test_format(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    wanted: str | None,
    *,
    terminal: bool,
    is_json: bool,
) -> None:
    """The log is text on a terminal, else JSON, unless the setting says which."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    output = shown(capsys, log_format=wanted)
    assert "a line" in output
    assert output.startswith("{") is is_json


def test_console_shows_no_hidden_character_of_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Config.model_validate({"log_format": "console"}))
    logging.getLogger("timer_service.test").info("a line", extra={"command_id": "a\u202eb\u2028c\u200bd-é"})
    assert r"a\u202eb\u2028c\u200bd-é" in capsys.readouterr().err


def test_console_shows_a_traceback_on_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """A line end in a message is escaped: it could make one line look like two. A long traceback is cut."""

    def fall(depth: int) -> None:
        if depth == 0:
            raise LookupError("4711")
        fall(depth - 1)

    configure_logs(Config.model_validate({"log_format": "console"}))
    with pytest.raises(LookupError) as caught:
        fall(100)
    log = logging.getLogger("timer_service.test")
    log.warning("one\ntwo", exc_info=HiddenTextError(caught.value))
    head, *calls, text = capsys.readouterr().err.splitlines()
    assert r"one\ntwo" in head
    assert calls[-1] == '    raise LookupError("4711")'
    assert text.startswith("LookupError (its text may have values of users")
