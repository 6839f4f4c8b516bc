"""The arguments and options that commands share, and how their values are read."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from timer_service.core.values.duration import LONGEST, parse_duration
from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import IDENTIFIER_PATTERN, TENANT_PATTERN

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_MILLISECOND = timedelta(milliseconds=1)
DURATION_FORMS = "500ms, 10s, 5m, 1h30m, 1d or 1w, or ISO 8601 such as PT1H30M"


def read_tenant(text: str) -> str:
    """Return a tenant. Like all functions here, it raises `BadParameter` if the text is not allowed."""
    if not re.fullmatch(TENANT_PATTERN, text):
        raise typer.BadParameter(f"{text!r} must be 1 to 64 letters, digits, dashes or underscores.")
    return text


def read_tenant_or_all(text: str) -> str:
    """Return a tenant, or `*` for all tenants."""
    return text if text == "*" else read_tenant(text)


def read_identifier(text: str) -> str:
    """Return an identifier of a timer, signal, work item, schedule, run, job, group or event."""
    if not re.fullmatch(IDENTIFIER_PATTERN, text):
        raise typer.BadParameter(f"{text!r} must be 1 to 200 characters without control characters.")
    return text


def read_instant(text: str) -> datetime:
    """Return an instant from ISO 8601 text with an offset."""
    try:
        return datetime.fromtimestamp(parse_instant(text) / 1000, UTC)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}.") from error


def read_duration(text: str) -> timedelta:
    """Return a duration of at most 366 days, rounded to milliseconds. An ISO 8601 duration is allowed, too."""
    return timedelta(milliseconds=round(_read_duration(text) / _MILLISECOND))


def read_distance(text: str) -> timedelta:
    """Return a duration that repeats, of whole milliseconds. It is not rounded, because the error would add up."""
    duration = _read_duration(text)
    if duration % _MILLISECOND:
        raise typer.BadParameter(f"{text!r} must be whole milliseconds.")
    return duration


def _read_duration(text: str) -> timedelta:
    parts = _DURATION.findall(text)
    is_short = "".join(number + unit for number, unit in parts) == text and len(dict(map(reversed, parts))) == len(
        parts
    )
    try:
        if not parts or not is_short:
            duration = timedelta(milliseconds=parse_duration(text))
        else:
            duration = sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} must be a duration, such as {DURATION_FORMS}.") from error
    except OverflowError:
        duration = timedelta.max
    if duration > LONGEST:
        raise typer.BadParameter(f"{text!r} is too long: give at most {LONGEST.days} days, or an instant.")
    return duration


def check_json(text: str) -> str:
    """Return a text that is JSON. It stays a text, because a parsed null would look like a missing option."""
    _parse_json(text)
    return text


def json_argument(text: str | None, name: str = "data") -> dict[str, Any]:
    """Return the keyword argument of a JSON text, or none if there is no text: None would be null."""
    return {} if text is None else {name: json.loads(text)}


def read_json_object(text: str) -> dict[str, Any]:
    """Return the object in a JSON text."""
    value = _parse_json(text)
    if not isinstance(value, dict):
        raise typer.BadParameter('must be a JSON object, such as {"key": "value"}.')
    return value


def read_graph_file(path: str) -> dict[str, Any]:
    """Return the jobs, and the groups if there are some, in a file of a run; `-` is standard input."""
    return _read_lists(path, "jobs", "groups")


def read_jobs_file(path: str) -> dict[str, Any]:
    """Return the jobs in a file of a group; `-` is standard input."""
    return _read_lists(path, "jobs")


def _read_lists(path: str, *names: str) -> dict[str, Any]:
    graph = _read_json_file(path)
    if unknown := sorted(graph.keys() - set(names)):
        fields = " and ".join(names)
        raise typer.BadParameter(f"{path!r} has the unknown field {unknown[0]!r}; the fields are: {fields}.")
    for name in ("jobs", *graph.keys()):
        if not isinstance(graph.get(name), list):
            raise typer.BadParameter(f"{path!r} must have a list {name!r}.")
    return graph


def _read_json_file(path: str) -> dict[str, Any]:
    """Return the JSON object in a file; `-` is standard input."""
    try:
        text = typer.get_text_stream("stdin").read() if path == "-" else Path(path).read_text("utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path!r}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path!r} is not text in UTF-8.") from error
    return read_json_object(text)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"must be JSON: {error}.") from error
    except RecursionError as error:
        raise typer.BadParameter("must be JSON with less nesting.") from error


def identifier(metavar: str, text: str) -> Any:
    """Return an argument that is an identifier."""
    return typer.Argument(parser=read_identifier, metavar=metavar, help=text)


def identifier_option(metavar: str, text: str, *names: str) -> Any:
    """Return an option that is an identifier."""
    return typer.Option(*names, parser=read_identifier, metavar=metavar, help=text)


def instant(text: str, *names: str) -> Any:
    """Return an option that is an instant."""
    return typer.Option(*names, parser=read_instant, metavar="TIME", help=text)


def duration(text: str, *names: str, parser: Callable[[str], timedelta] = read_duration) -> Any:
    """Return an option that is a duration."""
    return typer.Option(*names, parser=parser, metavar="DURATION", help=text)


def json_text(text: str, *names: str) -> Any:
    """Return an option that is JSON."""
    return typer.Option(*names, parser=check_json, metavar="JSON", help=text)


def choice(text: str, *names: str) -> Any:
    """Return an option that is one of the values of an enum."""
    return typer.Option(*names, case_sensitive=False, help=text)


Tenant = Annotated[str, typer.Argument(parser=read_tenant, metavar="TENANT", help="The tenant.")]
TenantOrAll = Annotated[
    str, typer.Argument(parser=read_tenant_or_all, metavar="TENANT", help="Only this tenant; * for all tenants.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show at most N rows.")]
All = Annotated[bool, typer.Option("--all", help="Show all rows, regardless of --limit.")]
Cursor = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="Continue after the last row of a page that was shown before.")
]
