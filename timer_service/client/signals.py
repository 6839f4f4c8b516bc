"""The methods of the client for work signals."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from timer_service.client.checks import (
    check_choice,
    check_identifier,
    check_list,
    check_status,
    check_text,
    optional,
    wire_instant,
)
from timer_service.client.events import WorkSignalFailed, WorkSignalFired
from timer_service.client.models import Firing, Outcome, Signal, Task
from timer_service.client.names import SignalStatus
from timer_service.client.resource import Resource


class Signals(Resource):
    """Methods for work signals, as `TimerClient.signals`. They raise the same exceptions as `TimerClient`."""

    _id = ("signalId", "signal_id")

    async def create(
        self,
        tenant: str,
        signal_id: str,
        *,
        work_item_id: str | None = None,
        on: Sequence[str] = (),
        at: datetime | None = None,
        note: str | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Create a signal that fires when `work_item_id` changes to a status in `on`, or else at the instant `at`."""
        if bool(on) == (at is not None):
            raise ValueError("on or at must be given, and not both")
        if at is None:
            statuses = [check_status("on", status) for status in check_list("on", on)]
            kind, spec = "event", {"kind": "work_item.status.transition", "to": statuses}
        else:
            kind, spec = "time", {"kind": "time.at", "at": wire_instant("at", at)}
        fields = {
            "triggerKind": kind,
            "triggerSpec": spec,
            "workItemId": optional(check_identifier, "work_item_id", work_item_id),
            "note": optional(check_text, "note", note),
        }
        return await self._send("CreateWorkSignal", tenant, signal_id, timeout_seconds, **fields)

    async def transition(self, tenant: str, work_item_id: str, to: str, *, timeout_seconds: float = 10) -> Outcome:
        """Report that the status of a work item has changed to `to`."""
        fields = {"workItemId": check_identifier("work_item_id", work_item_id), "to": check_status("to", to)}
        return await self._connection.send("TransitionWorkItem", tenant, fields, timeout_seconds)

    async def pause(self, tenant: str, signal_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Pause a signal: it does not fire until it is activated again."""
        return await self._send("PauseWorkSignal", tenant, signal_id, timeout_seconds)

    async def activate(self, tenant: str, signal_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Activate a paused or fired signal. It fires on transitions from now on."""
        return await self._send("ActivateWorkSignal", tenant, signal_id, timeout_seconds)

    async def cancel(self, tenant: str, signal_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a signal: it does not fire any more."""
        return await self._send("CancelWorkSignal", tenant, signal_id, timeout_seconds)

    async def resolve(self, tenant: str, signal_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Resolve a signal: its work is done and it does not fire any more."""
        return await self._send("ResolveWorkSignal", tenant, signal_id, timeout_seconds)

    async def get(self, tenant: str, signal_id: str, *, timeout_seconds: float = 10) -> Signal | None:
        """Return a signal, or None if it does not exist."""
        return await self._find("get-signal", Signal, tenant, signal_id, timeout_seconds)

    def list(
        self,
        tenant: str,
        *,
        status: SignalStatus | None = None,
        work_item_id: str | None = None,
        timeout_seconds: float = 10,
    ) -> AsyncIterator[Signal]:
        """Iterate over the signals of a tenant, by status and id. `status` and `work_item_id` filter them."""
        filters = {
            "status": optional(check_choice, "status", status, SignalStatus),
            "workItemId": optional(check_identifier, "work_item_id", work_item_id),
        }
        return self._list("list-signals", "signals", Signal, tenant, timeout_seconds, **filters)

    def firings(self, tenant: str, signal_id: str, *, timeout_seconds: float = 10) -> AsyncIterator[Firing]:
        """Iterate over the firings of a signal, oldest first. A signal that does not exist has none."""
        return self._list("list-firings", "firings", Firing, tenant, timeout_seconds, **self._key(signal_id))

    def tasks(self, tenant: str, work_item_id: str, *, timeout_seconds: float = 10) -> AsyncIterator[Task]:
        """Iterate over the follow-up tasks of a work item, oldest first. An item that does not exist has none."""
        work_item_id = check_identifier("work_item_id", work_item_id)
        return self._list("list-tasks", "tasks", Task, tenant, timeout_seconds, workItemId=work_item_id)

    def watch(self, tenant: str = "*") -> AsyncIterator[WorkSignalFired | WorkSignalFailed]:
        """Iterate over `work.signal.fired` and `work.signal.failed` events from now on, of a tenant or of all.

        See `Timers.watch`.
        """
        return self._connection.events(tenant, "work-signal-fired", "work-signal-failed")
