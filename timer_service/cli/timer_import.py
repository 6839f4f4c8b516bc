"""How `timer-service timers import` checks a file, schedules its timers and sums up what became of them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import typer

from timer_service.cli.output.outcomes import explain, rejection_text
from timer_service.cli.output.text import one_line
from timer_service.cli.progress import progress_bar
from timer_service.cli.timer_lines import LineFault, NumberedTimer, batches, read_lines
from timer_service.client import CommandError, NoAnswerError, Outcome, TimerClient
from timer_service.client.commands import Ended

_MOST_FAULTS = 20
_MOST_ERRORS = 1000
_TIMEOUT_SECONDS = 120
"""For a batch. A busy broker that syncs each command stores a few hundred per second."""
_STORED = {"scheduled", "rescheduled", "updated", "unchanged", "ignored_reached"}
"""The outcomes after which a line needs nothing more. The timer of `ignored_reached` has fired already."""


class Summary(NamedTuple):
    """What became of the timers of a file."""

    timers: int
    outcomes: Mapping[str, int]
    """The number of timers by outcome; `rejected` if the service rejected the command."""
    failed: int
    """How many timers are not stored."""
    errors: Sequence[Mapping[str, Any]]
    """The first of them: the line, the code and the message."""


def check_file(tenant: str, file: Path) -> int:
    """Return the number of timers in a file. Exits with 2 and the first faults if a line is wrong."""
    total = 0
    faults: list[LineFault] = []
    with file.open("rb") as lines:
        for each in read_lines(tenant, lines):
            if isinstance(each, NumberedTimer):
                total += 1
            else:
                faults.append(each)
                if len(faults) > _MOST_FAULTS:
                    break
    for line, field, reason in faults[:_MOST_FAULTS]:
        typer.echo(one_line(f"{file}:{line}: {field} {reason}"), err=True)
    if len(faults) > _MOST_FAULTS:
        typer.echo("There are more faults.", err=True)
    if faults:
        typer.echo("Nothing was imported.", err=True)
        raise typer.Exit(2)
    return total


async def import_file(client: TimerClient, tenant: str, file: Path, total: int) -> Summary:
    """Schedule the timers of a file. Raises `NoAnswerError` if the service or the broker does not answer."""
    outcomes = Counter[str]()
    errors: list[Mapping[str, Any]] = []
    failed = done = 0
    with file.open("rb") as lines, progress_bar("Importing", total) as update:
        for batch in batches(_timers(tenant, lines)):
            ended = await client.schedule_many(
                [each.timer for each in batch], progress=partial(_add, update, done), timeout_seconds=_TIMEOUT_SECONDS
            )
            _check_answers(file, done, total, ended)
            outcomes.update(map(_name, ended))
            found = [
                _error(each.line, end) for each, end in zip(batch, ended, strict=True) if _name(end) not in _STORED
            ]
            failed += len(found)
            errors += found[: _MOST_ERRORS - len(errors)]
            done += len(batch)
    if done != total:
        raise typer.BadParameter(f"The file has changed: it had {total:,} timers, and then {done:,}.")
    return Summary(total, outcomes, failed, errors)


def print_summary(file: Path, summary: Summary, *, as_json: bool) -> None:
    """Print how many timers had which outcome, and the lines that are not stored."""
    if as_json:
        typer.echo(json.dumps(summary._asdict()))
        return
    for error in summary.errors:
        typer.echo(one_line(f"{file}:{error['line']}: {error['message']}"), err=True)
    if summary.failed > len(summary.errors):
        typer.echo(f"{summary.failed - len(summary.errors):,} more timers are not stored.", err=True)
    counts = ", ".join(f"{count:,} {name}" for name, count in summary.outcomes.items())
    typer.echo(f"{summary.timers:,} timers" + (f": {counts}" if counts else ""))


def _timers(tenant: str, lines: BinaryIO) -> Iterator[NumberedTimer]:
    for each in read_lines(tenant, lines):
        if isinstance(each, LineFault):
            raise typer.BadParameter(f"The file has changed: line {each.line}: {each.field} {each.reason}.")
        yield each


def _check_answers(file: Path, done: int, total: int, ended: Sequence[Ended]) -> None:
    lost = [each for each in ended if isinstance(each, NoAnswerError)]
    if lost:
        stored = f"at least {done + len(ended) - len(lost):,} of {total:,} timers of {file} were handled"
        remedy = "Import the file again: timers that are stored already are unchanged"
        raise NoAnswerError(f"{lost[0]}; {stored}. {remedy}")


def _add(update: Callable[[int], object], before: int, number: int) -> None:
    update(before + number)


def _name(end: Ended) -> str:
    return end.name if isinstance(end, Outcome) else "rejected"


def _error(line: int, end: Ended) -> Mapping[str, Any]:
    if isinstance(end, CommandError):
        return {"line": line, "code": end.code, "message": rejection_text(end)}
    name, why = _name(end), explain(end, {}) if isinstance(end, Outcome) else None
    return {"line": line, "code": name, "message": f"{name}: {why or 'it is not stored'}"}
