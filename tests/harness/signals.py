"""Conversations about work signals: with the slice driven by hand, and with the real service."""

import asyncio
import json
import time
from abc import abstractmethod
from typing import Any

from tests.harness.clock import ManualClock
from tests.harness.conversation import Conversation
from tests.harness.in_process import VISIBILITY_TIMEOUT, InProcess, exhaust
from tests.harness.live_service import Live
from tests.harness.timers import bodies
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.broker import Broker
from timer_service.core.database import Database
from timer_service.core.lease import Lease
from timer_service.signals import SLICE
from timer_service.signals.evaluation import Evaluation
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.firing_worker import FiringWorker

MAX_ATTEMPTS = 3
BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}


class SignalConversation(Conversation):
    """About `signal-1` and `item-1`, unless a test says otherwise."""

    async def create(self, signal: str = "signal-1", item: str | None = "item-1", **fields: Any) -> Any:
        """Create a signal that waits for its work item to be blocked, unless `triggerSpec` says otherwise."""
        wanted = {"triggerKind": "event", "triggerSpec": BLOCKED, **({"workItemId": item} if item else {}), **fields}
        return await self.request("CreateWorkSignal", signalId=signal, **wanted)

    async def remind(self, at: str, signal: str = "signal-1", **fields: Any) -> Any:
        """Create a signal that waits for an instant."""
        spec = {"kind": "time.at", "at": at}
        return await self.create(signal, None, triggerKind="time", triggerSpec=spec, **fields)

    async def transition(self, to: str = "blocked", item: str = "item-1", **fields: Any) -> Any:
        """Have a work item come to a status."""
        return await self.request("TransitionWorkItem", workItemId=item, to=to, **fields)

    async def about(self, verb: str, signal: str = "signal-1", **fields: Any) -> Any:
        """Pause, Activate, Cancel or Resolve a signal."""
        return await self.request(f"{verb}WorkSignal", signalId=signal, **fields)

    @abstractmethod
    async def run(self) -> None:
        """Let everything go as far as it can by now."""

    @abstractmethod
    def now(self) -> int:
        """Return what time it is there."""

    @abstractmethod
    async def until(self, at: int) -> None:
        """Let it become that time."""

    @abstractmethod
    def events(self) -> list[Any]:
        """Return every event as of the last `run`, in order."""

    def events_of(self, message_type: str = "work.signal.fired") -> list[Any]:
        """Return the events of a type, in order."""
        return [each for each in self.events() if each["type"] == message_type]

    def fired(self) -> list[str]:
        """Return which signals have fired, in order."""
        return [each["payload"]["signalId"] for each in self.events_of()]

    async def status(self, signal: str = "signal-1") -> str:
        """Return where a signal stands."""
        found: str = (await self.ask("get-signal", signalId=signal))["status"]
        return found

    async def firings_of(self, signal: str = "signal-1") -> list[Any]:
        """Return the firings of a signal."""
        found: list[Any] = (await self.ask("list-firings", signalId=signal))["firings"]
        return found

    async def tasks_of(self, item: str = "item-1") -> list[Any]:
        """Return the follow-up tasks of a work item."""
        found: list[Any] = (await self.ask("list-tasks", workItemId=item))["tasks"]
        return found


class Signals(SignalConversation, InProcess):
    """Consumer, evaluation, firings and outbox."""

    def __init__(
        self,
        database: Database,
        broker: MemoryBroker,
        clock: ManualClock,
        *,
        evaluating: bool = True,
        through: Broker | None = None,
    ) -> None:
        """`through`: what the service sees of the broker, if not the broker itself."""
        super().__init__(database, broker, clock, SLICE, on=evaluating, through=through, max_attempts=MAX_ATTEMPTS)
        self.lease = Lease(FIRINGS, VISIBILITY_TIMEOUT)
        self.evaluation = Evaluation(self.parts)
        self.firings = FiringWorker(self.parts)

    async def run(self) -> None:
        for worker in (self.evaluation, self.firings, self.relay):
            await exhaust(worker, self.clock.now())

    def now(self) -> int:
        return self.clock.now()

    async def until(self, at: int) -> None:
        self.clock.set(at)

    def events(self) -> list[Any]:
        return bodies(self.broker.events)


class LiveSignals(SignalConversation, Live):
    """With the real service."""

    _events: list[Any]

    async def run(self) -> None:
        self._events = [json.loads(each.body) for each in await self.stored()]

    def now(self) -> int:
        return int(time.time() * 1000)

    async def until(self, at: int) -> None:
        while (left := at - self.now()) > 0:
            await asyncio.sleep(left / 1000)

    def events(self) -> list[Any]:
        return self._events
