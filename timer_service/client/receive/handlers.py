"""The handlers of an app: which function gets an event, and its data as the type that the function declares."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from timer_service.client.checks import check_identifier, optional
from timer_service.client.convert import code_of, read_data
from timer_service.client.events import Event, JobReady, ScheduleFired
from timer_service.client.receive.filters import Filter, check_filter
from timer_service.user_code import Ended, UserCode

_NAMES: dict[type[Event], str] = {JobReady: "job_name", ScheduleFired: "schedule_id"}
"""The field that a handler can choose by its value."""


class Handler(NamedTuple):
    """A function and the events that it gets. None means all of them."""

    kind: type[Event]
    topic: str | None
    name: str | None
    """The name of the job, or the id of the schedule."""
    function: Callable[[Any], Any]
    data_type: Any
    """The type of the data that the function declares; None if it declares none."""
    is_async: bool

    def takes(self, event: Event) -> bool:
        """Return whether the event has the class, topic and name of this handler."""
        if not isinstance(event, self.kind) or self.topic not in {None, event.topic}:
            return False
        return self.name is None or getattr(event, _NAMES[self.kind]) == self.name

    def convert(self, event: Event) -> Event:
        """Return the event with its data as the declared type. Raises ValueError if the data do not fit."""
        field = event.data_field
        if self.data_type is None or field is None:
            return event
        return replace(event, **{field: read_data(self.data_type, getattr(event, field), f"the {field} of the event")})

    async def call(self, event: Event, name: str, code: UserCode) -> Ended:
        """Call the function; in a thread if it is not async. Return how it ended. `name` says what runs."""
        return await code.run(name, self.function, event, is_async=self.is_async) or Ended()


class Handlers:
    """The handlers of an app. The most specific one gets an event."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []

    def __len__(self) -> int:
        return len(self._handlers)

    def decorator(
        self, kind: type[Event], topic: str | None = None, name: str | None = None
    ) -> Callable[[Callable[[Any], Any]], Any]:
        """Return a decorator that adds a function. Both raise ValueError with the name of a wrong argument."""
        if any(map(callable, (topic, name))):
            raise ValueError("a decorator must have brackets, such as `@app.on_due()`")
        check_filter("event", Filter(kind, topic))
        optional(check_identifier, _NAMES.get(kind, "name"), name)

        def add(function: Callable[[Any], Any]) -> Any:
            if any(each[:3] == (kind, topic, name) for each in self._handlers):
                raise ValueError(f"{kind.__name__} must have one handler for the same topic and name")
            if not callable(function):
                raise ValueError("a handler must be a function")  # noqa: TRY004 - like every wrong argument
            self._handlers.append(Handler(kind, topic, name, function, *_inspect(function, kind)))
            self._handlers.sort(key=_generality)
            return function

        return add

    def filters(self) -> list[Filter]:
        """Return the events that the handlers take. Names are compared here, not at the broker."""
        return [Filter(each.kind, each.topic) for each in self._handlers]

    def find(self, event: Event) -> Handler | None:
        """Return the handler of an event, or None."""
        return next((each for each in self._handlers if each.takes(event)), None)

    def expect(self, event: Event) -> bool:
        """Return whether such events come because of a handler, which may be for another name."""
        return any(isinstance(event, each.kind) and each.topic in {None, event.topic} for each in self._handlers)


def _generality(handler: Handler) -> tuple[bool, bool, bool]:
    return handler.kind is Event, handler.name is None, handler.topic is None


def _inspect(function: Callable[[Any], Any], kind: type[Event]) -> tuple[Any, bool]:
    """Return the type of data that the first annotated parameter names, or None, and whether the function is async.

    Raises ValueError if the function cannot be called with such an event.
    """
    target = code_of(function)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise ValueError(f"a handler must not yield: {function!r}")
    try:
        signature = inspect.signature(function)
        signature.bind(None)
    except TypeError as error:
        raise ValueError(f"a handler must take one argument, the event: {function!r}: {error}") from error
    try:
        hints = get_type_hints(inspect.unwrap(target))
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"the annotations of {function!r} must be names of its module: {error}") from error
    declared = next((hints[each] for each in signature.parameters if each in hints), Any)
    _check_declared(function, kind, declared)
    return _data_type(kind, declared), inspect.iscoroutinefunction(target)


def _check_declared(function: Callable[[Any], Any], kind: type[Event], declared: Any) -> None:
    """Raise ValueError if a function declares that it takes other events."""
    classes = [get_origin(each) or each for each in (declared, *get_args(declared))]
    events = [each for each in classes if isinstance(each, type) and issubclass(each, Event)]
    if events and not any(issubclass(kind, each) for each in events):
        raise ValueError(f"{function!r} must take {kind.__name__}, not {events[0].__name__}")


def _data_type(kind: type[Event], declared: Any) -> Any:
    """Return `Order` for `DueTimeReached[Order]`, also in a union; None if the data have no type."""
    for member in (declared, *get_args(declared)):
        if get_origin(member) is kind and (wanted := get_args(member)[0]) is not Any:
            return wanted
    return None
