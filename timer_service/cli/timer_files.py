"""`timer-service timers export` and `import`: timers as lines of JSON. They use the broker only."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field, ValidationError
from pydantic_core import from_json

from timer_service.cli.connection import broker_command
from timer_service.cli.output import one_line
from timer_service.cli.parameters import AsJson, Tenant, to_datetime
from timer_service.cli.resources import explain_limit, rejection_text
from timer_service.client import CommandError, NewTimer, NoAnswerError, Outcome, TimerClient
from timer_service.client.answers import read_cursor, read_rows
from timer_service.client.commands import Ended
from timer_service.core.values.codec import rejection_of
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import Identifier
from timer_service.timers.messages import ScheduleTimer

app = typer.Typer()

_PAGE_ROWS = 1000
_LONGEST_LINE = 1024 * 1024
_BATCH_LINES = 1000
_MOST_FAULTS = 20
_MOST_ERRORS = 1000
_TIMEOUT_SECONDS = 120
"""For a batch. A busy broker that syncs each command stores a few hundred per second."""
_STORED = {"scheduled", "rescheduled", "updated", "unchanged", "ignored_reached"}
"""The outcomes after which a line needs nothing more. The timer of `ignored_reached` has fired already."""
_EXPORTED = ("serviceCallId", "dueAt", "expiresAt", "topic", "data", "correlationId")
_EXAMPLE = '{"serviceCallId": "call-1", "dueAt": "2030-01-01T08:00:00Z"}'


def read_path(text: str) -> Path:
    """Return the path of a file that can be read twice. Raises `BadParameter` if there is none."""
    path = Path(text)
    try:
        path.open("rb").close()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {text!r}: {error.strerror}.") from error
    if not path.is_file():
        raise typer.BadParameter(f"{text!r} must be a file: it is read twice.")
    return path


TimersFile = Annotated[Path, typer.Argument(parser=read_path, metavar="FILE", help="A line of JSON for each timer.")]


class _Line(ScheduleTimer):
    """A ScheduleTimer, with the correlation id of its envelope."""

    correlation_id: Identifier | None = Field(default=None)


@broker_command(app)
async def export(client: TimerClient, tenant: Tenant) -> None:
    """Print the Scheduled timers of a tenant, a line of JSON for each, in order of due time.

    Timers that are scheduled, cancelled or fired during the export may be in it or not.
    """
    total = (await client.timers.count(tenant)).by_state.get("Scheduled")
    after: dict[str, str] = {}
    with _progress("Exporting", total) as advance:
        while True:
            page = await client.query(tenant, "list-timers", {"state": "Scheduled", "limit": _PAGE_ROWS, **after})
            views = read_rows(page, "timers")
            for view in views:
                typer.echo(json.dumps({field: view[field] for field in _EXPORTED if field in view}))
            advance(len(views))
            cursor = read_cursor(page, after.get("cursor"))
            if cursor is None:
                return
            after = {"cursor": cursor}


@broker_command(app, "import")
async def import_timers(client: TimerClient, tenant: Tenant, file: TimersFile, as_json: AsJson = False) -> None:
    """Schedule the timers in a file, as `export` writes it. The whole file is checked before the first is sent.

    If the import is interrupted, import the same file again: timers that are stored already are `unchanged`.
    """
    total = _check_file(tenant, file)
    timers = _timers(tenant, file)
    outcomes, errors = Counter[str](), list[Mapping[str, Any]]()
    with _progress("Importing", total) as advance:
        while batch := [*islice(timers, _BATCH_LINES)]:
            ended = await client.timers.schedule_many([timer for _, timer in batch], timeout_seconds=_TIMEOUT_SECONDS)
            _check_answers(outcomes.total(), total, ended)
            outcomes.update(map(_name, ended))
            refused = [(line, end) for (line, _), end in zip(batch, ended, strict=True) if _name(end) not in _STORED]
            errors += [_error(*each) for each in refused[: _MOST_ERRORS - len(errors)]]
            advance(len(batch))
    failed = sum(outcomes[name] for name in outcomes.keys() - _STORED)
    if as_json:
        typer.echo(json.dumps({"timers": total, "outcomes": outcomes, "failed": failed, "errors": errors}))
    else:
        for error in errors:
            typer.echo(one_line(f"{file}:{error['line']}: {error['message']}"), err=True)
        if failed > len(errors):
            typer.echo(f"{failed - len(errors):,} more timers are not stored.", err=True)
        counts = ", ".join(f"{count:,} {name}" for name, count in outcomes.items())
        typer.echo(f"{total:,} timers" + (f": {counts}" if counts else ""))
    if failed:
        raise typer.Exit(1)


def _check_file(tenant: str, file: Path) -> int:
    """Return the number of timers in a file. Exits with 2 and the first faults if a line is wrong."""
    total = 0
    faults: list[str] = []
    for number, line in _lines(file):
        try:
            _read_line(tenant, line)
        except Rejection as rejection:
            found = rejection.faults or [Fault("(line)", rejection.message)]
            faults += [f"{file}:{number}: {fault.path} {fault.reason}" for fault in found]
            if len(faults) > _MOST_FAULTS:
                break
        else:
            total += 1
    if faults:
        more = ["There are more faults."] if len(faults) > _MOST_FAULTS else []
        for text in [*faults[:_MOST_FAULTS], *more, "Nothing was imported."]:
            typer.echo(one_line(text), err=True)
        raise typer.Exit(2)
    return total


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line that is not empty; of a line that is too long, only its beginning."""
    with file.open("rb") as opened:
        for number, line in enumerate(iter(lambda: opened.readline(_LONGEST_LINE + 1), b""), 1):
            if not line.isspace():
                yield number, line
            while len(line) > _LONGEST_LINE and not line.endswith(b"\n"):
                line = opened.readline(_LONGEST_LINE + 1)  # noqa: PLW2901 - the rest of this line


def _timers(tenant: str, file: Path) -> Iterator[tuple[int, NewTimer]]:
    """Yield the number of each line, and its timer."""
    for number, line in _lines(file):
        try:
            yield number, _read_line(tenant, line)
        except Rejection as error:
            raise typer.BadParameter(f"The file has changed: line {number}: {error.message}.") from error


def _read_line(tenant: str, line: bytes) -> NewTimer:
    """Return the timer in a line. Raises `Rejection`."""
    if len(line) > _LONGEST_LINE:
        raise Rejection(Code.TOO_LARGE, f"is longer than {_LONGEST_LINE} bytes")
    try:
        fields = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Rejection(Code.INVALID_JSON, f"must be an object, such as {_EXAMPLE}")
    if "dueIn" in fields:
        raise _rejection("dueIn", "cannot be used here: a second import would move the timer. Give dueAt")
    if fields.setdefault("tenantId", tenant) != tenant:
        raise _rejection("tenantId", f"must be {tenant!r}, or missing")
    try:
        read = _Line.model_validate(fields, by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the line", error) from error
    return NewTimer(
        tenant,
        read.service_call_id,
        due_at=None if read.due_at is None else to_datetime(read.due_at),
        expires_at=None if read.expires_at is None else to_datetime(read.expires_at),
        late_by=None if read.late_by is None else timedelta(milliseconds=read.late_by),
        correlation_id=read.correlation_id,
        topic=read.topic,
        **({"data": fields["data"]} if "data" in fields else {}),
    )


def _rejection(field: str, reason: str) -> Rejection:
    """Return the error of a field that a ScheduleTimer may have, but not a line of a file."""
    return Rejection(Code.INVALID_PAYLOAD, f"{field} {reason}", [Fault(field, reason)])


def _check_answers(done: int, total: int, ended: Sequence[Ended]) -> None:
    """Raise `NoAnswerError` if a timer of a batch got no answer. `done`: how many were handled before the batch."""
    lost = [each for each in ended if isinstance(each, NoAnswerError)]
    if lost:
        stored = f"at least {done + len(ended) - len(lost):,} of {total:,} timers were handled"
        remedy = "Import the file again: timers that are stored already are unchanged"
        raise NoAnswerError(f"{lost[0]}; {stored}. {remedy}")


def _name(end: Ended) -> str:
    return end.name if isinstance(end, Outcome) else "rejected"


def _error(line: int, end: Ended) -> Mapping[str, Any]:
    """Return why the timer in a line is not stored: it was rejected, or had an outcome without effect."""
    if isinstance(end, CommandError):
        return {"line": line, "code": end.code, "message": rejection_text(end)}
    name, why = _name(end), explain_limit(end) if isinstance(end, Outcome) else None
    return {"line": line, "code": name, "message": f"{name}: {why or 'it is not stored'}"}


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[int], object]]:
    """Show a bar on a terminal while the block runs. Yields a function that takes how much more is done."""
    from rich.console import Console  # noqa: PLC0415 - a short command spends most of its time importing
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda number: bar.advance(task, number)
