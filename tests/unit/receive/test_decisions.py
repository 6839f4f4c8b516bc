"""What a consumer decides without I/O: delays, suspects, filters, and which handler gets an event."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tests.harness.cases import case
from timer_service.client import (
    DueTimeReached,
    Event,
    Filter,
    JobReady,
    RunCompleted,
    ScheduleFired,
    TimerApp,
    TimerExpired,
)
from timer_service.client.nats.subscription import read_reply
from timer_service.client.receive.attempt import describe
from timer_service.client.receive.delivery import DEATHS, LONGEST_DELAY, Arrival, Delivery, judge, retry_delay
from timer_service.client.receive.filters import check_consumer, subject_parts
from timer_service.client.receive.handlers import Handlers
from timer_service.client.receive.seen import MOST_REMEMBERED, MemorySeen

AT = datetime(2027, 1, 1, tzinfo=UTC)


def fired(topic: str | None = None, data: Any = None) -> DueTimeReached:
    values: dict[str, Any] = {"id": "1", "tenant": "acme", "created_at": AT, "topic": topic, "raw": {}}
    return DueTimeReached(**values, timer_id="call-1", due_at=AT, reached_at=AT, data=data)


def ready(job: str) -> JobReady:
    values: dict[str, Any] = {"id": "1", "tenant": "acme", "created_at": AT, "raw": {}}
    return JobReady(**values, run_id="r", job_name=job, ready_at=AT, upstream_job_outputs={})


def consumer_parts(*filters: type[Event] | Filter) -> list[str]:
    wait = timedelta(seconds=30)
    return subject_parts(check_consumer("acme", "orders", filters, stream=None, from_start=False, ack_wait=wait))


def test_delays_grow_up_to_ten_minutes() -> None:
    """A delay is at most 1 s, 2 s, 4 s and so on, up to 10 min. The jitter takes at most a fifth."""
    rng = random.Random(1)
    for attempt, longest in [(1, 1), (2, 2), (3, 4), (9, 256), (10, 512), (11, 600), (10_000, 600)]:
        delays = [retry_delay(attempt, rng).total_seconds() for _ in range(100)]
        assert longest * 0.8 <= min(delays) < max(delays) <= longest
    assert timedelta(minutes=10) == LONGEST_DELAY


def test_suspects() -> None:
    """An event that was delivered more often than it can have failed runs alone, and at last is parked without a try.

    One that has failed in this process is known: it waits for the service, which could not park it.
    """
    receipt: Any = None
    for attempt, failed_here, wanted in [
        (1, False, Arrival.RUN),
        (10, False, Arrival.RUN),
        (11, False, Arrival.ALONE),
        (10 + DEATHS, False, Arrival.ALONE),
        (11 + DEATHS, False, Arrival.PARK),
        (11, True, Arrival.RUN),
        (500, True, Arrival.RUN),
    ]:
        with case(f"{attempt} {failed_here}"):
            delivery = Delivery(fired(), attempt, receipt, size=1)
            assert judge(delivery, 10, failed_here=failed_here) is wanted


def test_filters_do_not_overlap() -> None:
    """A special filter is left out under a general one: JetStream refuses filters that overlap."""
    mine = "resubmitted.orders"
    general = ["due-time-reached", "due-time-reached.*", mine]
    assert consumer_parts(DueTimeReached) == general
    assert consumer_parts(DueTimeReached, Filter(DueTimeReached, "unpaid")) == general
    assert consumer_parts(Filter(DueTimeReached, "unpaid"), RunCompleted) == [
        "due-time-reached.unpaid",
        mine,
        "run-completed",
    ]
    everything = ["*", "due-time-reached.*", mine, "schedule-fired.*", "timer-expired.*"]
    assert consumer_parts(Filter(TimerExpired, "a"), Event, RunCompleted) == consumer_parts() == everything


def test_the_most_special_handler_gets_an_event() -> None:
    """A handler for a topic or a name comes before one for all of a class, and that one before one for all events."""
    handlers = Handlers()

    def add(answer: str, *wanted: Any) -> None:
        def handle(_: Any) -> str:
            return answer

        handlers.decorator(*wanted)(handle)

    def found(event: Event) -> Any:
        handler = handlers.find(event)
        return None if handler is None else handler.function(event)

    add("job", JobReady, None, "build")
    assert (found(ready("build")), found(ready("test")), handlers.expect(ready("test"))) == ("job", None, True)
    assert (found(fired()), handlers.expect(fired())) == (None, False)
    add("all", Event)
    add("due", DueTimeReached)
    add("unpaid", DueTimeReached, "unpaid")
    assert [found(fired(topic)) for topic in (None, "other", "unpaid")] == ["due", "due", "unpaid"]
    assert (found(ready("build")), found(ready("test"))) == ("job", "all")


@dataclass
class Order:
    number: int


async def typed(event: DueTimeReached[Order]) -> None: ...


async def in_a_union(event: DueTimeReached[Order] | TimerExpired[Order]) -> None: ...


def untyped(event): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201


async def with_database(database: int, event: DueTimeReached[Order]) -> None: ...


def without_data(event: DueTimeReached) -> None: ...


class Callee:
    async def __call__(self, event: DueTimeReached[Order]) -> None: ...

    async def method(self, event: DueTimeReached[Order]) -> None: ...


@pytest.mark.parametrize(
    ("function", "wanted", "is_async"),
    [
        (typed, Order(7), True),
        (in_a_union, Order(7), True),
        (Callee(), Order(7), True),
        (Callee().method, Order(7), True),
        (untyped, {"number": 7}, False),
        (without_data, {"number": 7}, False),
        (lambda _: None, {"number": 7}, False),
        (partial(without_data), {"number": 7}, False),
        (partial(with_database, 1), Order(7), True),
    ],
    ids=["typed", "union", "object", "method", "untyped", "without data", "lambda", "partial", "typed partial"],
)
def test_data_have_the_declared_type(function: Callable[[Any], Any], wanted: Any, is_async: bool) -> None:  # noqa: FBT001
    """The data are of the type that the function declares, or as in JSON if it declares none."""
    handlers = Handlers()
    handlers.decorator(DueTimeReached)(function)
    handler = handlers.find(fired())
    assert handler is not None
    converted = handler.convert(fired(data={"number": 7}))
    assert isinstance(converted, DueTimeReached)
    assert (converted.data, handler.is_async) == (wanted, is_async)
    if wanted == Order(7):
        with pytest.raises(ValueError, match="the data of the event is no Order: number: "):
            handler.convert(fired(data={"number": "x"}))


def test_wrong_arguments() -> None:
    """A wrong argument raises ValueError with its name, before the app connects."""
    app = TimerApp(tenant="acme", name="orders")

    def handle(_: Any) -> None: ...

    def undefined(_: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def without_event() -> None: ...

    def expired(_: TimerExpired[Any] | None) -> None: ...

    async def generator(_: Any) -> AsyncIterator[int]:
        yield 1

    app.on_due("unpaid")(handle)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: TimerApp(tenant="a.b", name="x"), "tenant must"),
        (lambda: TimerApp(tenant="acme", name="a.b"), "name must"),
        (lambda: TimerApp(tenant="acme", name="x", concurrency=0), "concurrency must"),
        (lambda: TimerApp(tenant="acme", name="x", attempts=0), "attempts must"),
        (lambda: TimerApp(tenant="acme", name="x", stream="a b"), "stream must"),
        (lambda: TimerApp(tenant="acme", name="x", ack_wait=timedelta(0)), "ack_wait must"),
        (lambda: TimerApp(tenant="acme", name="x", shutdown_timeout=timedelta(-1)), "shutdown_timeout must"),
        (lambda: TimerApp(tenant="acme", name="x", shutdown_timeout=3), "shutdown_timeout must be a timedelta"),  # type: ignore[arg-type]
        (lambda: TimerApp(tenant="acme", name="x", ack_wait=3), "ack_wait must be a timedelta"),  # type: ignore[arg-type]
        (lambda: TimerApp(tenant="acme", name="x", in_order=3), "in_order must be a bool"),  # type: ignore[arg-type]
        (lambda: TimerApp(tenant="acme", name="x", from_start=3), "from_start must be a bool"),  # type: ignore[arg-type]
        (lambda: app.on_due("Un.paid")(handle), "topic must be 1 to 64"),
        (lambda: app.on_due("unpaid")(handle), "DueTimeReached must have one handler"),
        (lambda: app.on_job("")(handle), "job_name must"),
        (lambda: app.on_slot("\n")(handle), "schedule_id must"),
        (lambda: app.on(int)(handle), "event must be a class of events"),  # type: ignore[arg-type]
        (lambda: app.on(RunCompleted)(undefined), "the annotations of .* must be names of its module"),
        (lambda: app.on_due(handle), "must have brackets"),  # type: ignore[arg-type]
        (lambda: app.on_due()(without_event), "must take one argument, the event: .*without_event"),  # type: ignore[type-var]
        (lambda: app.on_due()(expired), ".*expired.* must take DueTimeReached, not TimerExpired"),  # type: ignore[type-var]
        (lambda: app.on_due()(partial(generator)), "must not yield: .*generator"),
        (lambda: check_consumer("a", "b", [Filter(RunCompleted, "t")], **OTHERS), "topic must be left out for Run"),
        (lambda: check_consumer("a", "b", [int], **OTHERS), "events must be a class of events"),  # type: ignore[list-item]
    ]
    for call, match in wrong:
        with case(match), pytest.raises(ValueError, match=match):
            call()


OTHERS: Any = {"stream": None, "from_start": False, "ack_wait": timedelta(seconds=30)}


async def test_an_app_without_handlers() -> None:
    """It raises ValueError before it connects."""
    with pytest.raises(ValueError, match="the app must have a handler"):
        await TimerApp(tenant="acme", name="orders").serve()
    with pytest.raises(RuntimeError, match="the app does not run"):
        _ = TimerApp(tenant="acme", name="orders").client


def test_replies_with_and_without_a_domain() -> None:
    """The reply subject of a delivery names the message and how often it was delivered."""
    assert read_reply("$JS.ACK.TIMER_EVT.acme~orders.3.41.7.1795920170541021513.0")[:2] == (41, 3)
    assert read_reply("$JS.ACK._.hash.TIMER_EVT.acme~orders.3.41.7.1795920170541021513.0.x")[:2] == (41, 3)


async def test_memory_forgets_the_oldest() -> None:
    """It remembers the last 100,000 events of all consumers, and has no part in a transaction."""
    seen = MemorySeen()
    for number in range(MOST_REMEMBERED + 1):
        await seen.add("orders", str(number))
    assert [await seen.has(*each) for each in [("orders", "0"), ("orders", "1"), ("other", "1")]] == [
        False,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="seen must be a store in your database"):
        await seen.add_in(None, "orders", "1")


def test_errors_as_text() -> None:
    """An error is shown with its type, also if its text cannot be read, is long, or cannot be sent."""

    class Broken(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(KeyError("x")) == "KeyError: 'x'"
    assert describe(ValueError()) == "ValueError"
    assert describe(Broken()) == "Broken: (the text of this error cannot be shown, because its __str__ raises an error)"
    group = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("", [KeyError("b")])])
    assert describe(group) == "ExceptionGroup: two (2 sub-exceptions): ValueError: a; KeyError: 'b'"
    assert describe(ValueError("\ud800" * 2000)) == f"ValueError: {'?' * 1000}"


def test_schedules_are_chosen_by_their_id() -> None:
    """`on_slot` takes the id of a schedule, or a topic."""
    app = TimerApp(tenant="acme", name="orders")

    @app.on_slot("morning-report")
    def report(event: ScheduleFired) -> None: ...

    @app.on_slot(topic="nightly")
    def nightly(event: ScheduleFired) -> None: ...

    assert report is not nightly
