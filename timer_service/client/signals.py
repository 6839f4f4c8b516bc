"""Work signals: the part of the client that is about them."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from timer_service.client.arguments import check_identifier, check_signal_status, check_tenant, wire_instant
from timer_service.client.link import Link
from timer_service.client.views import Outcome, Signal


class Signals:
    """Speaks the contracts of work signals; `TimerClient.signals` is one.

    As there, ValueError names the argument that can't be used, `CommandError` says why the service rejected a command,
    `QueryError` why it can't tell, and `NoAnswerError` that there was no answer within `timeout_seconds`.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

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
        """Create a signal that fires when `item` comes to one of the statuses `on`, or else at the instant `at`."""
        if bool(on) == (at is not None):
            raise ValueError("on or at must be given, and not both")
        fields: dict[str, Any] = {"signalId": check_identifier("signal", signal)}
        if at is None:
            spec = {"kind": "work_item.status.transition", "to": list(on)}
            fields |= {"triggerKind": "event", "triggerSpec": spec}
        else:
            spec = {"kind": "time.at", "at": wire_instant("at", at)}
            fields |= {"triggerKind": "time", "triggerSpec": spec}
        if item is not None:
            fields["workItemId"] = check_identifier("item", item)
        if note is not None:
            fields["note"] = note
        return await self._link.send(self._link.command("CreateWorkSignal", tenant, fields), timeout_seconds)

    async def transition(self, tenant: str, item: str, to: str, *, timeout_seconds: float = 10) -> Outcome:
        """Tell that a work item has come to a status."""
        fields = {"workItemId": check_identifier("item", item), "to": to}
        return await self._link.send(self._link.command("TransitionWorkItem", tenant, fields), timeout_seconds)

    async def pause(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Have a signal not fire until it is activated."""
        return await self._tell("PauseWorkSignal", tenant, signal, timeout_seconds)

    async def activate(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Have a paused or fired signal fire on what happens from now on."""
        return await self._tell("ActivateWorkSignal", tenant, signal, timeout_seconds)

    async def cancel(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Have a signal fire no more."""
        return await self._tell("CancelWorkSignal", tenant, signal, timeout_seconds)

    async def resolve(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Outcome:
        """Tell that what a signal was for is dealt with."""
        return await self._tell("ResolveWorkSignal", tenant, signal, timeout_seconds)

    async def get(self, tenant: str, signal: str, *, timeout_seconds: float = 10) -> Signal | None:
        """Return a signal, or None when there is none."""
        question = {"signalId": check_identifier("signal", signal)}
        view = await self._link.find(tenant, "get-signal", question, timeout_seconds)
        return None if view is None else Signal.read(view)

    def list(
        self, tenant: str, *, status: str | None = None, item: str | None = None, timeout_seconds: float = 10
    ) -> AsyncIterator[Signal]:
        """Iterate over a tenant's signals in order of their ids; those of one status only, of one work item only."""
        check_tenant(tenant)
        question: dict[str, Any] = {}
        if status is not None:
            question["status"] = check_signal_status(status)
        if item is not None:
            question["workItemId"] = check_identifier("item", item)
        views = self._link.pages(tenant, "list-signals", question, "signals", timeout_seconds)
        return (Signal.read(view) async for view in views)

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over the `work.signal.fired` events of a tenant (default: all) as `TimerClient.watch` does."""
        if tenant != "*":
            check_tenant(tenant)
        return self._link.events(tenant, "work-signal-fired")

    async def _tell(self, message_type: str, tenant: str, signal: str, timeout_seconds: float) -> Outcome:
        fields = {"signalId": check_identifier("signal", signal)}
        return await self._link.send(self._link.command(message_type, tenant, fields), timeout_seconds)
