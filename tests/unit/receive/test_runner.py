"""How deliveries run in a process, without a broker: order, suspects, repeats, the stop, and a store that is away."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.harness import stubborn
from tests.harness.waiting import until
from timer_service.client import (
    AlreadyHandled,
    DueTimeReached,
    MemorySeen,
    PermanentError,
    RetryLater,
)
from timer_service.client.events import read_event
from timer_service.client.receive import attempt as attempts_module
from timer_service.client.receive import delivery as delivery_module
from timer_service.client.receive import runner as runner_module
from timer_service.client.receive.attempt import Attempts
from timer_service.client.receive.delivery import DEATHS, Delivery
from timer_service.client.receive.handlers import Handlers
from timer_service.client.receive.runner import Rules, Runner
from timer_service.user_code import UserCode, end_loop

AT = "2026-11-21T09:00:00.000Z"
ENVELOPE = {"type": "DueTimeReached", "tenantId": "acme", "timestampMs": 1}
SOON = timedelta(milliseconds=1)
Handle = Callable[[DueTimeReached], Awaitable[None]]


class Broker:
    """A source of deliveries that notes what becomes of each."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        self.log: list[str] = []
        """`ack 1`, `back 1` (given back at once) and `retry 1`, in order."""
        self.renewed: list[str] = []
        self.parked: list[tuple[str, str, int]] = []
        self.parks = True

    def deliver(self, name: str, *, timer: str = "call", attempt: int = 1, problem: str | None = None) -> None:
        body = {**ENVELOPE, "id": name, "payload": {"serviceCallId": timer, "dueAt": AT, "reachedAt": AT}}
        event = read_event(json.dumps(body).encode())
        self.arrived.put_nowait(Delivery(event, attempt, _Receipt(self, name), size=100, problem=problem))

    async def next(self) -> Delivery:
        return await self.arrived.get()

    def next_waiting(self) -> Delivery | None:
        return None if self.arrived.empty() else self.arrived.get_nowait()

    async def stop(self) -> None:
        while (delivery := self.next_waiting()) is not None:
            await delivery.retry()

    async def park(self, delivery: Delivery, reason: str, attempts: int) -> bool:
        self.parked.append((delivery.event.id, reason, attempts))
        return self.parks

    async def until(self, *log: str) -> None:
        """Wait until these things have happened, and nothing else."""
        await until(lambda: len(self.log) >= len(log), pause=0)
        assert sorted(self.log) == sorted(log)


class _Receipt:
    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name

    async def ack(self) -> None:
        self._broker.log.append(f"ack {self._name}")

    async def retry(self, delay: timedelta) -> None:
        self._broker.log.append(f"{'retry' if delay else 'back'} {self._name}")

    async def renew(self) -> None:
        self._broker.renewed.append(self._name)


@asynccontextmanager
async def running(
    broker: Broker,
    handle: Handle,
    *,
    concurrency: int = 10,
    in_order: bool = False,
    attempts: int = 3,
    seen: Any = None,
    ack_wait: timedelta = timedelta(seconds=30),
    shutdown_timeout: timedelta = timedelta(seconds=10),
) -> AsyncIterator[asyncio.Event]:
    """Run the deliveries of a broker. Yields the event that stops it."""
    handlers = Handlers()
    handlers.decorator(DueTimeReached)(handle)
    tries = Attempts(
        handlers,
        seen or MemorySeen(),
        "orders",
        broker.park,
        attempts=attempts,
        code=UserCode(concurrency),
        takes_all=False,
    )
    stop = asyncio.Event()
    rules = Rules(concurrency, attempts, in_order, ack_wait, shutdown_timeout)
    task = asyncio.create_task(Runner(broker, tries, rules).run(stop))
    yield stop
    stop.set()
    await task


class Gate:
    """A handler that waits until the test lets an event go. Notes which ones have begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open: set[str] = set()

    async def __call__(self, event: DueTimeReached) -> None:
        self.begun.append(event.id)
        while event.id not in self.open:
            await asyncio.sleep(0)

    async def until_begun(self, *names: str) -> None:
        await until(lambda: len(self.begun) >= len(names), pause=0)
        for _ in range(20):  # nothing else begins
            await asyncio.sleep(0)
        assert sorted(self.begun) == sorted(names)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "FIRST_DELAY", SOON)
    monkeypatch.setattr(attempts_module, "STORE_PAUSE", SOON)
    monkeypatch.setattr(runner_module, "SUSPECTS_PAUSE", SOON)


async def test_concurrency_is_bounded() -> None:
    """At most `concurrency` handlers run at a time. The next one begins when one has ended."""
    broker, gate = Broker(), Gate()
    async with running(broker, gate, concurrency=2):
        for name in "abcd":
            broker.deliver(name)
        await gate.until_begun("a", "b")
        gate.open.add("b")
        await gate.until_begun("a", "b", "c")
        gate.open.update("acd")
        await broker.until("ack a", "ack b", "ack c", "ack d")


async def test_a_repeat_waits_for_the_first_one() -> None:
    """Two deliveries of the same event do not run at once: the second one finds the mark of the first one."""
    broker, gate = Broker(), Gate()
    async with running(broker, gate):
        broker.deliver("a")
        broker.deliver("a")
        await gate.until_begun("a")
        gate.open.add("a")
        await broker.until("ack a", "ack a")
    assert gate.begun == ["a"]


async def test_in_order_a_failing_event_holds_its_key() -> None:
    """Later events of the same timer wait until the failing one is done or parked. Those of other timers run."""
    broker = Broker()
    runs: list[str] = []

    async def handle(event: DueTimeReached) -> None:
        runs.append(event.id)
        if event.id == "a1" and runs.count("a1") < 3:
            raise RuntimeError("not yet")
        if event.id == "a2":
            raise RuntimeError("never")

    async with running(broker, handle, in_order=True):
        for name in ("a1", "a2", "b1", "a3"):
            broker.deliver(name, timer=name[0])
        await broker.until("ack b1", "ack a1", "ack a2", "ack a3")
    assert [each for each in runs if each[0] == "a"] == ["a1"] * 3 + ["a2"] * 3 + ["a3"]
    assert broker.log.index("ack b1") < broker.log.index("ack a1")
    assert broker.parked == [("a2", "RuntimeError: never", 3)]


async def test_failures_are_tried_again_and_parked(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is given back with a delay. At its last attempt the event is parked, and acknowledged after that.

    The log of the first failure says when the event comes again, and where it ends.
    """
    broker = Broker()

    async def handle(event: DueTimeReached) -> None:
        raise RuntimeError(event.id)

    async with running(broker, handle):
        broker.deliver("a", attempt=1)
        broker.deliver("b", attempt=2)
        broker.deliver("c", attempt=3)
        await broker.until("retry a", "retry b", "ack c")
        assert broker.parked == [("c", "RuntimeError: c", 3)]
        lines = sorted(each.getMessage().partition(" of timer call ")[2] for each in caplog.records)
        assert lines == [
            "failed, attempt 1 of 3; it comes again in 0.0 s, and is parked after attempt 3",
            "failed, attempt 2 of 3; it comes again in 0.0 s, and is parked after attempt 3",
            "failed, attempt 3 of 3",
            "is parked after attempt 3 (see `timer-service events parked`): RuntimeError: c",
        ]
        broker.parks = False
        broker.deliver("d", attempt=3)
        await broker.until("retry a", "retry b", "ack c", "retry d")
        broker.parks = True
        broker.deliver("d", attempt=500)  # however long the service was away
        await broker.until("retry a", "retry b", "ack c", "retry d", "ack d")


async def test_what_is_parked_at_once() -> None:
    """A message that cannot be read, data that do not fit, and a `PermanentError` are parked at the first attempt."""
    broker = Broker()

    async def handle(event: DueTimeReached[int]) -> None:
        raise PermanentError("no such order")

    async def number(event: DueTimeReached[int]) -> None: ...

    async with running(broker, handle):
        broker.deliver("a", problem="this is no event: dueAt is missing or wrong")
        await broker.until("ack a")
    async with running(broker, number):
        broker.deliver("b")
        await broker.until("ack a", "ack b")
    assert [each[0] for each in broker.parked] == ["a", "b"]
    assert [each[1].partition(":")[0] for each in broker.parked] == ["this is no event", "ValueError"]
    permanent = Broker()

    async def fail(event: DueTimeReached) -> None:
        raise PermanentError("no such order")

    async with running(permanent, fail):
        permanent.deliver("c")
        await permanent.until("ack c")
    assert permanent.parked == [("c", "PermanentError: no such order", 1)]


async def test_an_outage_does_not_count() -> None:
    """`RetryLater` and a seen store that is away hold the event here, in the same delivery. No attempt is counted."""
    broker = Broker()
    runs: list[str] = []

    async def handle(event: DueTimeReached) -> None:
        runs.append(event.id)
        if len(runs) < 20:
            raise RetryLater(SOON, "the database is away")

    async with running(broker, handle, attempts=2):
        broker.deliver("a")
        await broker.until("ack a")
    assert (len(runs), broker.parked) == (20, [])

    class Away(MemorySeen):
        asked = 0

        async def has(self, consumer: str, event_id: str) -> bool:
            self.asked += 1
            if self.asked < 20:
                raise OSError("no database")
            return await super().has(consumer, event_id)

        async def add(self, *_: str) -> None:
            raise OSError("no database")

    async with running(broker, handle, attempts=2, seen=Away()):
        broker.deliver("b")
        await broker.until("ack a", "ack b")
    assert (len(runs), broker.parked) == (21, [])


async def test_the_end_of_a_handler() -> None:
    """`AlreadyHandled` is a success. A handler that cancels itself, or ends a thread with SystemExit, has failed."""
    broker = Broker()

    async def handle(event: DueTimeReached) -> None:
        if event.id == "a":
            raise AlreadyHandled
        raise asyncio.CancelledError

    async with running(broker, handle):
        broker.deliver("a")
        broker.deliver("b")
        await broker.until("ack a", "retry b")

    def leave(event: DueTimeReached) -> Any:
        raise SystemExit(event.id)

    async with running(broker, leave):
        broker.deliver("c")
        await broker.until("ack a", "retry b", "retry c")


async def test_errors_in_a_group() -> None:
    """An error in a group counts as it does alone: the first of PermanentError, RetryLater, others, AlreadyHandled.

    The cause of an error does not count.
    """

    class NoDelay(RetryLater):
        def __init__(self) -> None:
            """Forget the delay."""

    broker = Broker()
    later, permanent, handled = RetryLater(SOON), PermanentError("no such order"), AlreadyHandled()
    errors: dict[str, list[Exception]] = {
        "permanent": [permanent],
        "both": [later, ExceptionGroup("inner", [ValueError(), permanent])],
        "later": [ValueError(), ExceptionGroup("inner", [RetryLater(timedelta(0)), NoDelay()])],
        "other": [handled, ValueError(), NoDelay()],
        "handled": [handled, ExceptionGroup("inner", [AlreadyHandled()])],
    }
    seen: list[str] = []

    async def handle(event: DueTimeReached) -> None:
        seen.append(event.id)
        if event.id == "cause":
            raise ValueError from permanent
        if event.id != "later" or seen.count("later") < 5:
            raise ExceptionGroup("outer", errors[event.id])

    async with running(broker, handle):
        for name in (*errors, "cause"):
            broker.deliver(name)
        await broker.until("ack permanent", "ack both", "ack later", "retry other", "ack handled", "retry cause")
    assert sorted(each[0] for each in broker.parked) == ["both", "permanent"]
    assert {each[1].partition(":")[0] for each in broker.parked} == {"ExceptionGroup"}
    assert seen.count("later") == 5


async def test_a_handler_or_store_that_does_not_end() -> None:
    """The stop waits neither for a handler nor for a seen store that ignores its cancellation."""

    class Stubborn(MemorySeen):
        async def has(self, consumer: str, event_id: str) -> bool:
            if event_id == "a":
                return await super().has(consumer, event_id)
            await stubborn.loops()
            return True

    broker, begun = Broker(), asyncio.Event()

    async def handle(event: DueTimeReached) -> None:
        begun.set()
        await stubborn.catches_everything()

    async with asyncio.timeout(10):
        async with running(broker, handle, seen=Stubborn(), shutdown_timeout=SOON):
            broker.deliver("a")
            broker.deliver("b")
            await begun.wait()
        await end_loop()
    assert broker.log == []


async def test_suspects_run_alone() -> None:
    """An event that may end the process runs while no other one is in progress. After more deaths it is parked."""
    broker, gate = Broker(), Gate()
    async with running(broker, gate, attempts=3):
        broker.deliver("a")
        broker.deliver("suspect", attempt=4)
        broker.deliver("b")
        await gate.until_begun("a", "b")
        gate.open.update("ab")
        await gate.until_begun("a", "b", "suspect")
        broker.deliver("c")
        await gate.until_begun("a", "b", "suspect")
        gate.open.update({"suspect", "c"})
        broker.deliver("deadly", attempt=4 + DEATHS)
        await broker.until("ack a", "ack b", "ack suspect", "ack c", "ack deadly")
    assert "deadly" not in gate.begun
    reason = f"it was delivered {4 + DEATHS} times; each time the process ended, lost it or gave it back"
    assert broker.parked == [("deadly", reason, 4 + DEATHS)]


async def test_an_event_that_waits_holds_up_no_other() -> None:
    """`RetryLater` of a suspect, or of an event before one, lets the others run."""
    broker = Broker()

    async def handle(event: DueTimeReached) -> None:
        if event.id.startswith("wait"):
            raise RetryLater(timedelta(minutes=1))

    async with running(broker, handle, attempts=3):
        broker.deliver("wait")
        broker.deliver("wait as a suspect", attempt=4)
        broker.deliver("suspect", attempt=4)
        broker.deliver("a")
        await broker.until("ack suspect", "ack a")


async def test_a_harmful_event_does_not_park_others() -> None:
    """However often an event ends the process, those that are delivered soon after it are handled soon."""
    attempts = dict.fromkeys("abcdefghijklmnopqrst", 1)
    parked: list[str] = []

    for _ in range(100):
        broker = Broker()
        died = asyncio.Event()

        async def handle(event: DueTimeReached, died: asyncio.Event = died) -> None:
            if event.id == "a":
                died.set()
            if died.is_set():  # nothing more happens in this process
                await asyncio.sleep(60)

        left = len(attempts)
        async with running(broker, handle, attempts=3, shutdown_timeout=timedelta(0)):
            for name, attempt in attempts.items():
                broker.deliver(name, attempt=attempt)
                if name == "a":
                    await until(broker.arrived.empty, pause=0)
            async with asyncio.timeout(10):
                while not died.is_set() and sum(each.startswith("ack") for each in broker.log) < left:
                    await asyncio.sleep(0)
            log = list(broker.log)
        parked += [each[0] for each in broker.parked]
        attempts = {name: attempt + 1 for name, attempt in attempts.items() if f"ack {name}" not in log}
        if not attempts:
            break
        assert attempt < 5 or [*attempts] == ["a"]
    assert (parked, attempts) == (["a"], {})


async def test_the_stop_gives_back_what_has_not_begun() -> None:
    """Handlers in progress end and are acknowledged. What waits for a slot, a delay or its key is given back."""
    broker, gate = Broker(), Gate()

    async def handle(event: DueTimeReached) -> None:
        if event.id == "later":
            raise RetryLater(timedelta(minutes=1))
        await gate(event)

    async with running(broker, handle, concurrency=2, in_order=True) as stop:
        broker.deliver("later", timer="x")
        broker.deliver("later-2", timer="x")
        broker.deliver("a", timer="a")
        broker.deliver("b", timer="b")
        broker.deliver("c", timer="c")
        await gate.until_begun("a", "b")
        stop.set()
        await broker.until("back later", "back later-2", "back c")
        gate.open.update("ab")
        await broker.until("back later", "back later-2", "back c", "ack a", "ack b")


async def test_a_hung_handler_does_not_stop_the_stop() -> None:
    """After `shutdown_timeout` the handler is cancelled. Its event is not acknowledged."""
    broker, gate = Broker(), Gate()
    async with running(broker, gate, shutdown_timeout=SOON):
        broker.deliver("a")
        await gate.until_begun("a")
    assert broker.log == []


async def test_deliveries_are_renewed() -> None:
    """Whatever is not settled is renewed in its order: what runs, and what waits for its key."""
    broker, gate = Broker(), Gate()
    async with running(broker, gate, in_order=True, ack_wait=timedelta(milliseconds=3)):
        broker.deliver("a")
        broker.deliver("b")
        await until(lambda: broker.renewed[-4:] == ["a", "b", "a", "b"], pause=0)
        gate.open.update("ab")
        await broker.until("ack a", "ack b")
