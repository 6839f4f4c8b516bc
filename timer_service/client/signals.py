"""The methods of the client for work signals."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from timer_service.client.checks import (
    check_choice,
    check_identifier,
    check_list,
    check_status,
    check_text,
    wire_instant,
)
from timer_service.client.connection import Connection
from timer_service.client.models import Firing, Outcome, Signal, SignalStatus, Task


class Signals:
    """Methods for work signals, as `TimerClient.signals`. They raise the same exceptions as `TimerClient`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        tenant: str,
        signal: str,
        *,
        item: str | None = None,
        on: Sequence[str] = (),
        at: datetime | None = None,
        note: str | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Create a signal that fires when `item` changes to a status in `on`, or else at the instant `at`."""
        if bool(on) == (at is not None):
            raise ValueError("on or at must be given, and not both")
        fields: dict[str, Any] = {"signalId": check_identifier("signal", signal)}
        if at is None:
            statuses = [check_status("on", status) for status in check_list("on", on)]
            spec = {"kind": "work_item.status.transition", "to": statuses}
            fields |= {"triggerKind": "event", "triggerSpec": spec}
        else:
            spec = {"kind": "time.at", "at": wire_instant("at", at)}
            fields |= {"triggerKind": "time", "triggerSpec": spec}
        if item is not None:
            fields["workItemId"] = check_identifier("item", item)
        if note is not None:
            fields["note"] = check_text("note", note)
        return await self._connection.send("CreateWorkSignal", tenant, fields, timeout_seconds)

    async def transition(self, tenant: str, item: str, to: str, *, timeout_seconds: float = 10) -> Outcome:
        """Report that the status of a work item has changed to `to`."""
        fields = {"workItemId": check_identifier("item", item), "to": check_status("to", to)}
        return await self._connection.send("TransitionWorkItem", tenant, fields, timeout_seconds)

    async def pause(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Pause a signal: it does not fire until it is activated again."""
        return await self._send("PauseWorkSignal", tenant, signal, timeout_seconds)

    async def activate(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Activate a paused or fired signal. It fires on transitions from now on."""
        return await self._send("ActivateWorkSignal", tenant, signal, timeout_seconds)

    async def cancel(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a signal: it does not fire any more."""
        return await self._send("CancelWorkSignal", tenant, signal, timeout_seconds)

    async def resolve(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Resolve a signal: its work is done and it does not fire any more."""
        return await self._send("ResolveWorkSignal", tenant, signal, timeout_seconds)

    async def get(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Signal | None:
        """Return a signal, or None if it does not exist."""
        question = {"signalId": check_identifier("signal", signal)}
        view = await self._connection.find(tenant, "get-signal", question, timeout_seconds)
        return None if view is None else Signal.read(view)

    def list(
        self, tenant: str, *, status: str | None = None, item: str | None = None, timeout_seconds: float = 10
    ) -> AsyncIterator[Signal]:
        """Iterate over the signals of a tenant in order of their ids. `status` and `item` filter them."""
        question: dict[str, Any] = {}
        if status is not None:
            question["status"] = check_choice("status", status, SignalStatus)
        if item is not None:
            question["workItemId"] = check_identifier("item", item)
        views = self._connection.pages(tenant, "list-signals", question, "signals", timeout_seconds)
        return (Signal.read(view) async for view in views)

    def firings(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> AsyncIterator[Firing]:
        """Iterate over the firings of a signal, oldest first. A signal that does not exist has none."""
        question = {"signalId": check_identifier("signal", signal)}
        views = self._connection.pages(tenant, "list-firings", question, "firings", timeout_seconds)
        return (Firing.read(view) async for view in views)

    def tasks(self, tenant: str, item: str, *, timeout_seconds: float = 10) -> AsyncIterator[Task]:
        """Iterate over the follow-up tasks of a work item, oldest first. An item that does not exist has none."""
        question = {"workItemId": check_identifier("item", item)}
        views = self._connection.pages(tenant, "list-tasks", question, "tasks", timeout_seconds)
        return (Task.read(view) async for view in views)

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over `work.signal.fired` and `work.signal.failed` events from now on, of a tenant or of all.

        See `TimerClient.watch`.
        """
        return self._connection.events(tenant, "work-signal-fired", "work-signal-failed")

    async def _send(self, message_type: str, tenant: str, signal: str, timeout_seconds: float) -> Outcome:
        fields = {"signalId": check_identifier("signal", signal)}
        return await self._connection.send(message_type, tenant, fields, timeout_seconds)
