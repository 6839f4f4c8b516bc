"""Conversations about signals: with the signals slice in this process, and with the real service."""

import asyncio
import json
import time
from abc import abstractmethod
from typing import Any, Unpack

from tests.harness.clock import ManualClock
from tests.harness.conversation import Conversation
from tests.harness.in_process import InProcess, Options, exhaust
from tests.harness.live_service import Live
from tests.harness.memory_broker import MemoryBroker
from tests.harness.timers import bodies
from timer_service.core.ports.database import Database
from timer_service.signals import SLICE
from timer_service.signals.evaluation import Evaluation
from timer_service.signals.firing_worker import FiringWorker

BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}


class SignalConversation(Conversation):
    """A conversation about `signal-1` and `item-1`, unless a test names others."""

    async def create(self, signal: str = "signal-1", item: str | None = "item-1", **fields: Any) -> Any:
        """Create a signal. By default, it fires when its work item changes to `blocked`."""
        wanted = {"triggerKind": "event", "triggerSpec": BLOCKED, **({"workItemId": item} if item else {}), **fields}
        return await self.request("CreateWorkSignal", signalId=signal, **wanted)

    async def remind(self, at: str, signal: str = "signal-1", **fields: Any) -> Any:
        """Create a signal that fires at an instant."""
        spec = {"kind": "time.at", "at": at}
        return await self.create(signal, None, triggerKind="time", triggerSpec=spec, **fields)

    async def transition(self, to: str = "blocked", item: str = "item-1", **fields: Any) -> Any:
        """Change the status of a work item."""
        return await self.request("TransitionWorkItem", workItemId=item, to=to, **fields)

    async def about(self, verb: str, signal: str = "signal-1", **fields: Any) -> Any:
        """Send a command about a signal. `verb` is Pause, Activate, Cancel or Resolve."""
        return await self.request(f"{verb}WorkSignal", signalId=signal, **fields)

    @abstractmethod
    async def run(self) -> None:
        """Do all work that is due now."""

    @abstractmethod
    def now(self) -> int:
        """Return the current time of the service."""

    @abstractmethod
    async def until(self, at: int) -> None:
        """Wait until `at`, or set the clock to it."""

    @abstractmethod
    def events(self) -> list[Any]:
        """Return every event up to the last `run`, in order of publication."""

    def events_of(self, message_type: str = "work.signal.fired") -> list[Any]:
        """Return the events of a type, in order of publication."""
        return [each for each in self.events() if each["type"] == message_type]

    def fired(self) -> list[str]:
        """Return the signals that fired, in order of publication."""
        return [each["payload"]["signalId"] for each in self.events_of()]

    async def status(self, signal: str = "signal-1") -> str:
        """Return the status of a signal."""
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
    """The signals slice in this process."""

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, broker, clock, SLICE, **options)
        self.evaluation = Evaluation(self.parts, monotonic=lambda: 0.0)
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
    """The real service."""

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
