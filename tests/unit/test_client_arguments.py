"""Wrong arguments of every method of the client: a ValueError that names the argument. No broker is needed."""

import inspect
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.harness.cases import case
from timer_service import runs, signals, timers
from timer_service.app.slices import SCHEDULES
from timer_service.client import (
    CalendarInterval,
    DeadLetter,
    NewTimer,
    NoAnswerError,
    Timer,
    TimerClient,
    TimerServiceError,
    WorkflowStart,
)
from timer_service.client.checks import wire_duration, wire_instant
from timer_service.client.connection import Connection
from timer_service.client.events import WITH_TOPIC, message_of
from timer_service.client.nats.link import NatsLink
from timer_service.client.retry import Retry
from timer_service.core.service.slice import Slice
from timer_service.core.values.address import kebab
from timer_service.nats_client import LastingClient

LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)

LETTER = DeadLetter(
    headers={},
    sequence=1,
    tenant="acme",
    message="schedule-timer",
    code="INTERNAL",
    reason="",
    stored_at=LATER,
    source_sequence=1,
    size=2,
    body="{}",
)


def _calendar(**fields: Any) -> CalendarInterval:
    """Return a calendar interval, with other fields than the usual ones if wanted."""
    at = LATER.replace(tzinfo=None)
    return CalendarInterval(**{"every": 2, "unit": "weeks", "anchor": at, **fields})


VALID: dict[str, Any] = {
    "tenant": "acme",
    "timer_id": "call-1",
    "schedule_id": "report",
    "signal_id": "call-kim",
    "run_id": "push-1",
    "job": "lint",
    "event_id": "event-1",
    "consumer": "orders",
    "event": {"id": "event-1", "type": "JobReady", "payload": {}},
    "group": "tests",
    "work_item_id": "ticket-7",
    "to": "blocked",
    "prefix": "order-",
    "note": "Call",
    "name": "get-timer",
    "request": {"serviceCallId": "call-1"},
    "on": ["blocked"],
    "groups": ["tests"],
    "jobs": [{"name": "lint"}],
    "outputs": {"a": 1},
    "attempt": 2,
    "timers": [NewTimer("acme", "call-1", LATER)],
    "cron": "@daily",
    "calendar": _calendar(),
    "zone": ZoneInfo("Europe/Berlin"),
    "catch_up": "skip",
    "data": 1,
    "progress": print,
    "workflow_id": "order-1",
    "workflow_type": "order",
    "queue": "default",
    "retry": Retry(),
    "concurrency_key": "customer-1",
    "concurrency_limit": 2,
    "when_busy": "queue",
    "start": WorkflowStart(workflow_type="order"),
    "message_id": "message-1",
    "letter": LETTER,
    "correlation_id": "order-7",
    "reason": "not paid",
    "topic": "unpaid",
    **dict.fromkeys(
        (
            "due_at",
            "expires_at",
            "start_at",
            "end_at",
            "from_at",
            "to_at",
            "at",
            "due_before",
            "due_after",
            "deadline_at",
        ),
        LATER,
    ),
    **dict.fromkeys(("due_in", "late_by", "every", "jitter", "start_in", "deadline_in"), HOUR),
    **dict.fromkeys(
        (
            "count",
            "upcoming",
            "max_count",
            "catch_up_limit",
            "timeout_seconds",
            "sequence",
            "limit",
            "before",
            "attempts",
        ),
        5,
    ),
}
"""A valid value of each argument. `state` and `status` follow below: they depend on the method."""
STATES = {
    "Timers.list": "Scheduled",
    "Schedules.list": "paused",
    "Signals.list": "fired",
    "Runs.list": "failed",
    "Workflows.list": "failed",
}
INSTEAD_OF = {"every": "cron", "calendar": "cron", "due_in": "due_at", "at": "on"}
"""An argument that can only be given instead of another one."""
ALWAYS = {"due_at", "on", "cron"}
"""Arguments that have a default, but are part of a valid call."""
WAITS = ("workflows", "result")
"""A method that waits while there is no connection."""
WRONG = (object(), b"text", [object()])


def methods() -> Iterator[tuple[str, str]]:
    """Yield the place of each public method in the client, and its name, but `consume`: see `receive/`."""
    client = TimerClient(Connection(NatsLink(LastingClient(), "timer")))
    places = ("", *(name for name, part in vars(client).items() if not name.startswith("_")))
    for place in places:
        part = getattr(client, place) if place else client
        for name, _ in inspect.getmembers(type(part), inspect.isfunction):
            if not name.startswith("_") and name != "consume":
                yield place, name


METHODS = [*methods()]


def method_of(place: str, name: str) -> Callable[..., Any]:
    """Return a method of a client that is not connected."""
    client = TimerClient(Connection(NatsLink(LastingClient(), "timer")))
    method: Callable[..., Any] = getattr(getattr(client, place) if place else client, name)
    return method


def arguments_of(method: Callable[..., Any]) -> dict[str, Any]:
    """Return a valid value of each argument of a method."""
    values = {**VALID, "status": "success", "state": "Scheduled"}
    if method.__qualname__ in STATES:
        values["status"] = values["state"] = STATES[method.__qualname__]
    return {name: values[name] for name in inspect.signature(method).parameters}


def smallest_call(method: Callable[..., Any], argument: str | None = None) -> dict[str, Any]:
    """Return the arguments of a valid call that has `argument`."""
    parameters = inspect.signature(method).parameters
    values = arguments_of(method)
    wanted = {name for name, each in parameters.items() if each.default is each.empty or name in ALWAYS}
    wanted |= set() if argument is None else {argument}
    return {name: values[name] for name in parameters if name in wanted - {INSTEAD_OF.get(argument or "")}}


async def call(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    result = method(**arguments)
    return await (result if inspect.isawaitable(result) else anext(result))


async def test_a_valid_argument_passes_the_checks() -> None:
    """With valid arguments a method gets as far as the missing connection."""
    for place, name in [each for each in METHODS if each != WAITS]:
        with case(place, name):
            method = method_of(place, name)
            for argument in inspect.signature(method).parameters:
                with pytest.raises(NoAnswerError, match="not connected"):
                    raise_first(await call(method, smallest_call(method, argument)))


class Recorder(Connection):
    """A connection that records what would be sent: commands, requests, and the events that a watch asks for."""

    def __init__(self) -> None:
        super().__init__(NatsLink(LastingClient(), "timer"))
        self.sent: list[object] = []

    async def send_many(self, commands: Any, *_: object) -> Any:
        self.sent += [{**json.loads(command.body), "id": ""} for command in commands]
        raise NoAnswerError

    async def request(self, *request: object) -> Any:
        self.sent.append(request)
        raise NoAnswerError

    async def events(self, *names: object, **about: object) -> Any:
        self.sent.append((names, about))
        raise NoAnswerError
        yield


async def sent(place: str, name: str, arguments: dict[str, Any]) -> Any:
    """Return what a call sends."""
    recorder = Recorder()
    client = TimerClient(recorder)
    with pytest.raises(NoAnswerError):
        await call(getattr(getattr(client, place) if place else client, name), arguments)
    (message,) = recorder.sent
    return message


def without_or_other(values: dict[str, Any], argument: str) -> dict[str, Any] | None:
    """Return the arguments with a greater number, duration or instant, or without an argument that is optional."""
    value = values.get(argument)
    if isinstance(value, datetime):
        return {**values, argument: value + HOUR}
    if isinstance(value, CalendarInterval):
        return {**values, argument: _calendar(every=4)}
    if isinstance(value, int | timedelta):
        return {**values, argument: value * 2}
    return None if argument in ALWAYS else {name: each for name, each in values.items() if name != argument}


async def test_each_argument_is_sent() -> None:
    """Each optional argument changes what is sent."""
    for place, name in [each for each in METHODS if each[0] != "dead_letters" and each != WAITS]:
        method = method_of(place, name)
        for argument, parameter in inspect.signature(method).parameters.items():
            values = smallest_call(method, argument)
            others = without_or_other(values, argument)
            is_required = parameter.default is parameter.empty
            if is_required or others is None or argument in {"timeout_seconds", "progress"}:
                continue
            with case(place, name, argument):
                assert await sent(place, name, values) != await sent(place, name, others)


@pytest.mark.parametrize(
    ("slice_", "watch"),
    [
        (timers.SLICE, ("timers", "watch")),
        (signals.SLICE, ("signals", "watch")),
        (SCHEDULES, ("schedules", "watch")),
        (runs.SLICE, ("runs", "watch_all")),
    ],
)
async def test_a_watch_of_all_events(slice_: Slice, watch: tuple[str, str]) -> None:
    """It asks for each type of event that the slice publishes, with a topic or without one."""
    names, _ = await sent(*watch, {})
    types = {kebab(each.type) for each in slice_.events}
    assert set(names) == {"*", *types}
    with_topic = {kebab(each.type) for each in slice_.events if each.has_topic}
    assert with_topic == types & {message_of(each) for each in WITH_TOPIC}


def raise_first(results: Any) -> None:
    """Raise the error that `schedule_many` returns for its only timer."""
    raise results[0]


async def test_an_argument_of_a_wrong_type_is_named() -> None:
    """A value of a wrong type raises ValueError, and its text begins with the name of the argument."""
    for place, name in METHODS:
        with case(place, name):
            method = method_of(place, name)
            for argument, wrong in product(inspect.signature(method).parameters, WRONG):
                with pytest.raises(ValueError, match=rf"^{argument}(\[\d+\])? must "):
                    await call(method, {**smallest_call(method, argument), argument: wrong})


async def test_arguments_are_checked_before_the_iteration() -> None:
    """A method that returns an iterator checks its arguments when it is called."""
    for place, name in METHODS:
        method = method_of(place, name)
        arguments = smallest_call(method)
        if not inspect.iscoroutinefunction(method):
            with pytest.raises(ValueError, match=r"^tenant must "):
                method(**arguments | {"tenant": "a.b"})


NAIVE = datetime(2100, 1, 1)  # noqa: DTZ001 - the mistake
LARGE = "x" * 1_100_000
MISTAKES: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "tenant must": (("timers", "count"), {"tenant": "*"}),
    "timer_id must be 1 to 200": (("timers", "get"), {"timer_id": "x" * 201}),
    "timer_id must be 1 to 200 ": (("timers", "get"), {"timer_id": "\ud800"}),
    "due_at must have a timezone: UTC, or a ZoneInfo if it is the time of a place": (
        ("timers", "schedule"),
        {"due_at": NAIVE},
    ),
    "due_at must lie": (("timers", "schedule"), {"due_at": datetime(1969, 12, 31, tzinfo=UTC)}),
    "due_at or due_in must be given, and not both": (("timers", "schedule"), {"due_at": None}),
    "due_at or due_in must": (("timers", "schedule"), {"due_in": HOUR}),
    "late_by must lie between 0 and 366 days": (("timers", "schedule"), {"late_by": timedelta(367)}),
    "topic must be 1 to 64": (("timers", "schedule"), {"topic": "Unpaid"}),
    "topic must be 1 to 64 ": (("timers", "schedule"), {"topic": "unpaid\n"}),
    "topic must be 1 to 64 lower-case": (("schedules", "list"), {"topic": "a.b"}),
    "late_by must lie": (("timers", "schedule"), {"late_by": -HOUR}),
    "timeout_seconds must be a number": (("timers", "get"), {"timeout_seconds": float("nan")}),
    "timeout_seconds must be a number ": (("timers", "get"), {"timeout_seconds": True}),
    "count must be a whole number": (("schedules", "preview"), {"count": True}),
    "attempt must be at least 1": (("runs", "report"), {"attempt": 0}),
    "attempt must be a whole number": (("runs", "report"), {"attempt": True}),
    "groups must be a list": (("runs", "start"), {"groups": "tests"}),
    "on must be 1 to 100 ": (("signals", "create"), {"on": ["x" * 101]}),
    "data must be JSON: Out of range": (("timers", "schedule"), {"data": float("nan")}),
    "data must be JSON: 'utf-8'": (("timers", "schedule"), {"data": "\ud800"}),
    "data must be smaller": (("timers", "schedule"), {"data": LARGE}),
    r"timers\[0\]\.due_at": (("timers", "schedule_many"), {"timers": [NewTimer("acme", "call-1", NAIVE)]}),
    "state must be one of Scheduled, Reached": (("timers", "list"), {"state": "scheduled"}),
    "on or at must be given, and not both": (("signals", "create"), {"at": LATER}),
    "on must be 1 to 100": (("signals", "create"), {"on": [""]}),
    "note must be text": (("signals", "create"), {"note": "\ud800"}),
    "jobs must be smaller": (("runs", "start"), {"jobs": [{"name": "x", "payload": LARGE}]}),
    "event must be smaller": (("events", "park"), {"event": {"id": "1", "type": "x", "payload": {"data": LARGE}}}),
    "event must be JSON": (("events", "park"), {"event": {"id": object()}}),
    "attempts must be at least 1": (("events", "park"), {"attempts": 0}),
    "reason must be 1 to 1000": (("events", "park"), {"reason": "x" * 1001}),
    "reason must be 1 to 1000 ": (("events", "park"), {"reason": "a\0b"}),
    "consumer must be 1 to 64": (("events", "resubmit"), {"consumer": "a.b"}),
    "one of cron, every and calendar must be given": (("schedules", "put"), {"cron": None}),
    "one of cron, every and calendar must": (("schedules", "preview"), {"every": HOUR}),
    "calendar must be a CalendarInterval": (("schedules", "put"), {"cron": None, "calendar": "2 weeks"}),
    "calendar.every must be a whole number": (("schedules", "put"), {"cron": None, "calendar": _calendar(every=1.5)}),
    "calendar.unit must be one of days, weeks, months": (
        ("schedules", "put"),
        {"cron": None, "calendar": _calendar(unit="years")},
    ),
    "calendar.anchor must have no timezone": (
        ("schedules", "preview"),
        {"cron": None, "calendar": _calendar(anchor=LATER)},
    ),
    "every must be whole milliseconds": (("schedules", "put"), {"cron": None, "every": timedelta(microseconds=1)}),
    "start_at cannot be combined": (("workflows", "start"), {"start_at": LATER, "start_in": HOUR}),
    "concurrency_limit must be a whole number": (("workflows", "start"), {"concurrency_limit": "2"}),
    "when_busy must be one of skip, queue, replace": (("workflows", "start"), {"when_busy": "wait"}),
    "deadline_at cannot be combined": (("workflows", "start"), {"deadline_at": LATER, "deadline_in": HOUR}),
}


@pytest.mark.parametrize("message", MISTAKES)
async def test_a_wrong_value_is_named(message: str) -> None:
    """A value that the service would reject raises ValueError with the name of the argument."""
    place, wrong = MISTAKES[message]
    method = method_of(*place)
    with pytest.raises(ValueError, match=f"^{message.strip()}"):
        await call(method, {**smallest_call(method), **wrong})


def test_answers_that_cannot_be_read_are_not_quoted() -> None:
    """The error names the field, but not the data of the timer: a program may log it."""
    with pytest.raises(TimerServiceError, match=r"(?s)cannot read.*dueAt") as caught:
        Timer.read({"serviceCallId": "call-1", "data": "s3cret", "dueAt": "s3cret"})
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    "wrong",
    [{"max_attempts": 0}, {"factor": 0.9}, {"first": -HOUR}, {"first": 25 * HOUR}, {"cap": -HOUR}, {"cap": 169 * HOUR}],
    ids=str,
)
def test_wrong_retry(wrong: dict[str, Any]) -> None:
    """A policy that the service would refuse raises ValueError with the name of the argument."""
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} must lie between"):
        Retry(**wrong)


def test_wire_forms() -> None:
    """Durations are rounded up, so that no timer is due earlier. Instants are in UTC: offsets can have seconds."""
    assert wire_duration("due_in", timedelta(seconds=1, microseconds=1)) == "PT1.001S"
    assert wire_duration("due_in", timedelta(366)) == wire_duration("due_in", 366 * 24 * HOUR)
    assert Retry(cap=HOUR).wire == {"maxAttempts": 5, "first": "PT1S", "factor": 2, "cap": "PT1H"}
    local = LATER.astimezone(timezone(timedelta(hours=1, seconds=1)))
    assert wire_instant("due_at", local) == "2100-01-01T09:30:00+00:00"
