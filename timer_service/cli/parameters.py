"""The arguments and options that commands share, and how their values are read."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from timer_service.client import WhenBusy
from timer_service.core.values.address import IDENTIFIER_PATTERN, TENANT_PATTERN, TOPIC_PATTERN
from timer_service.core.values.duration import LONGEST, parse_duration
from timer_service.core.values.instant import parse_instant

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DURATION_FORMS = "10s, 5m, 1h30m, 1d or 1w, or ISO 8601 such as PT1H30M"


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


def read_topic(text: str) -> str:
    """Return a topic of a timer or schedule."""
    if not re.fullmatch(TOPIC_PATTERN, text):
        must = "1 to 64 lower-case letters, digits, dashes or underscores, and begin with a letter or digit"
        raise typer.BadParameter(f"{text!r} must be {must}.")
    return text


def read_instant(text: str) -> datetime:
    """Return an instant from ISO 8601 text with an offset."""
    try:
        return to_datetime(parse_instant(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}.") from error


def to_datetime(at: int) -> datetime:
    """Return an instant as a datetime. `fromtimestamp` is not exact in the far future."""
    return _EPOCH + timedelta(milliseconds=at)


def read_duration(text: str) -> timedelta:
    """Return a duration of whole milliseconds and at most 366 days. An ISO 8601 duration is allowed, too."""
    numbers = {unit: number for number, unit in _DURATION.findall(text)}
    is_short = text != "" and "".join(number + unit for unit, number in numbers.items()) == text  # no unit twice
    try:
        if is_short:
            duration = timedelta(**{_UNITS[unit]: float(number) for unit, number in numbers.items()})
        else:
            duration = timedelta(milliseconds=parse_duration(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} must be a duration, such as {DURATION_FORMS}.") from error
    except OverflowError:
        duration = timedelta.max
    if duration > LONGEST:
        raise typer.BadParameter(f"{text!r} is too long: give at most {LONGEST.days} days, or an instant.")
    if duration % _MILLISECOND:
        raise typer.BadParameter(f"{text!r} must be whole milliseconds.")
    return duration


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value that was given. Without this wrapper, `null` would look like a missing option."""

    value: Any


def read_json(text: str) -> Json:
    """Return the value of a JSON text."""
    try:
        return Json(json.loads(text))
    except ValueError as error:
        raise typer.BadParameter(f"must be JSON: {error}.") from error
    except RecursionError as error:
        raise typer.BadParameter("must be JSON with less nesting.") from error


def read_json_object(text: str) -> dict[str, Any]:
    """Return the object in a JSON text."""
    value = read_json(text).value
    if not isinstance(value, dict):
        raise typer.BadParameter('must be a JSON object, such as {"key": "value"}.')
    return value


def read_graph_file(path: str) -> dict[str, Any]:
    """Return the jobs, and the groups if there are some, in a file of a run or group; `-` is standard input."""
    try:
        text = typer.get_text_stream("stdin").read() if path == "-" else Path(path).read_text("utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path!r}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path!r} is not text in UTF-8.") from error
    graph = read_json_object(text)
    if unknown := sorted(graph.keys() - {"jobs", "groups"}):
        raise typer.BadParameter(f"{path!r} has the unknown field {unknown[0]!r}; the fields are: jobs and groups.")
    for name in ("jobs", *graph.keys()):
        if not isinstance(graph.get(name), list):
            raise typer.BadParameter(f"{path!r} must have a list {name!r}.")
    return graph


def argument(metavar: str, text: str, wanted: Any = str, *, parser: Callable[[str], Any] | None = None) -> Any:
    """Return the type of an argument. `wanted`: the type of its value; None is allowed if it may be missing."""
    return Annotated[wanted, typer.Argument(metavar=metavar, help=text, parser=parser)]


def identifier(metavar: str, text: str, wanted: Any = str) -> Any:
    """Return the type of an argument that is an identifier."""
    return argument(metavar, text, wanted, parser=read_identifier)


def option(metavar: str, text: str, *names: str, parser: Callable[[str], Any] | None = None) -> Any:
    """Return the type of an option that may be missing. `names`: other than that of its parameter."""
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=text, parser=parser)]


def identifier_option(metavar: str, text: str, *names: str) -> Any:
    """Return the type of an option that is an identifier."""
    return option(metavar, text, *names, parser=read_identifier)


def topic(text: str) -> Any:
    """Return the type of an option that is a topic."""
    return option("TOPIC", text, parser=read_topic)


def instant(text: str, *names: str, wanted: Any = str | None) -> Any:
    """Return the type of an option that is an instant. `wanted`: the type of its value; without None, it is needed."""
    return Annotated[wanted, typer.Option(*names, metavar="TIME", help=text, parser=read_instant)]


def duration(text: str, *names: str) -> Any:
    """Return the type of an option that is a duration."""
    return option("DURATION", text, *names, parser=read_duration)


def json_option(text: str, *names: str) -> Any:
    """Return the type of an option that is JSON."""
    return option("JSON", text, *names, parser=read_json)


def number(text: str, *names: str) -> Any:
    """Return the type of an option that is a number, at least 1."""
    return Annotated[int | None, typer.Option(*names, min=1, metavar="N", help=text)]


def choice(values: Any, text: str, *names: str) -> Any:
    """Return the type of an option that is one of the values of a `Literal`. Its help lists them."""
    text = f"{text} One of: {', '.join(map(str.lower, get_args(values)))}."
    return Annotated[values | None, typer.Option(*names, metavar="WORD", case_sensitive=False, help=text)]


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
CONCURRENCY = {
    "concurrency_key": identifier_option("KEY", "Only some workflows with this key at a time.", "--key"),
    "concurrency_limit": number("So many of them. Default: 1.", "--limit"),
    "when_busy": choice(
        WhenBusy,
        "If so many are started: do not start it (skip, the default), let it wait for its turn (queue), or cancel the "
        "oldest (replace).",
    ),
}
"""The options about the concurrency key of a workflow."""
