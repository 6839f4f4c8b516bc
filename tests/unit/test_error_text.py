"""Error texts, and the lines of the log that show errors."""

import json
import logging
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from pydantic import TypeAdapter, ValidationError

import timer_service
from timer_service.config import Config
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseSetupError
from timer_service.core.values.message import Envelope
from timer_service.logs import configure_logs, error_trace
from timer_service.schedules.calendar.errors import RecurrenceError

SECRET = "4711-secret"


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python(SECRET)
    return caught.value


def refused_row() -> asyncpg.PostgresError:
    fields = {"C": "23505", "M": "duplicate key", "D": f"Key (tenant_id)=({SECRET}) already exists.", "t": "outbox"}
    error: asyncpg.PostgresError = asyncpg.PostgresError.new(fields)
    return error


@pytest.mark.parametrize(
    "error",
    [
        invalid(),
        refused_row(),
        KeyError(SECRET),
        ValueError(f"could not convert string to float: '{SECRET}'"),
        json.JSONDecodeError("no JSON", SECRET, 0),
        UnicodeEncodeError("utf-8", f"{SECRET}\ud800", 11, 12, "surrogates not allowed"),
        ExceptionGroup(SECRET, [ValueError(SECRET)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_values_are_not_shown(error: Exception) -> None:
    """The text of an error that can quote a value is only its type, and its notes."""
    assert SECRET not in error_text(error) + error_trace(error)
    assert type(error).__name__ in error_text(error)
    error.add_note("SQLSTATE 23505, table outbox")
    assert error_text(error).endswith(": SQLSTATE 23505, table outbox")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RecurrenceError("UNKNOWN_ZONE", "zone", "'Mars' is not a time zone"), "'Mars' is not a time zone"),
        (DatabaseSetupError("no such table"), "timer_service.core.values.errors.DatabaseSetupError: no such table"),
        (sqlite3.IntegrityError("CHECK constraint failed: c"), "sqlite3.IntegrityError: CHECK constraint failed: c"),
        (OSError(13, "Permission denied", "/data"), "PermissionError: [Errno 13] Permission denied: '/data'"),
        (TypeError("not a number"), "TypeError: not a number"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=["for users", "core", "sqlite", "os", "code", "empty"],
)
def test_other_texts_are_shown(error: Exception, text: str) -> None:
    """The text of an error that quotes no values helps to find the cause. A reason that users see names no class."""
    assert error_text(error) == text


@pytest.fixture
def fresh_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.usefixtures("fresh_logging")
def test_log(log_format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The log shows where an error was raised and its causes, but neither local variables nor values."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_logs(Config(log_format=log_format))
    raise_and_log(json.dumps({"type": SECRET, "tenantId": 1}))
    shown = capsys.readouterr().err
    for each in ("it failed", "ValidationError", "RuntimeError: a bug", "raise_and_log", __file__):
        assert each in shown
    assert SECRET not in shown
    assert ("\nRuntimeError: a bug" in shown) is (log_format == "console"), "on a terminal, a traceback has lines"


def raise_and_log(body: str) -> None:
    try:
        try:
            Envelope.model_validate_json(body)
        except ValidationError as error:
            raise RuntimeError("a bug") from error
    except RuntimeError:
        logging.getLogger("test").exception("it failed")


def caught(error: Exception, *, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    """Return an error as it is after it was raised from a cause, or while another error was handled."""
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, cause is not None
    return error


def test_causes() -> None:
    """A trace has the causes of an error, those of the errors of a group too: each once, and at most ten errors."""
    group = ExceptionGroup("two", [caught(TypeError("one"), cause=OSError("deep")), TimeoutError("other")])
    trace = error_trace(caught(RuntimeError("last"), context=group))
    assert all(text in trace for text in ("last", "one", "deep", "other"))
    trace = error_trace(caught(RuntimeError("last"), cause=TypeError("shown"), context=OSError("hidden")))
    assert ("shown" in trace, "hidden" in trace) == (True, False)
    chain: Exception = TypeError("number 0")
    for number in range(1, 12):
        chain = caught(TypeError(f"number {number}"), cause=chain)
    assert re.findall(r"number (\d+)", error_trace(chain)) == [str(number) for number in range(11, 1, -1)]
    circle = TypeError("itself")
    assert error_trace(caught(circle, cause=circle)).count("itself") == 1


def test_no_error_is_shown_as_it_is() -> None:
    """The code shows an error of an unknown type with `error_text`, never with `repr`."""
    files = Path(timer_service.__file__).parent.rglob("*.py")
    found = [str(file) for file in files if re.search(r"\brepr\(error\)|\{error!r\}", file.read_text("utf-8"))]
    assert found == []
