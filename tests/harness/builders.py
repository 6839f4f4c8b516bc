"""Builders of commands, timers and events. The defaults are valid; a test sets only what it is about."""

import json
from collections.abc import Mapping
from typing import Any

from tests.harness.clock import NOW, iso
from tests.harness.memory_log import headers_of
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Message, Position
from timer_service.core.values.raw_command import MESSAGE_ID, RawCommand
from timer_service.timers import rules
from timer_service.timers.messages import State
from timer_service.timers.rules import Key, Schedule, Timer

FIRST = Position(1, 1)
KEY = Key("acme", "call-1")


def command(
    message_type: str, payload: Mapping[str, Any], *, tenant: str = "acme", envelope: Mapping[str, Any] | None = None
) -> bytes:
    """Return the body of a command. `envelope` adds fields to the envelope or replaces them."""
    return json.dumps({"type": message_type, "tenantId": tenant, "payload": payload, **(envelope or {})}).encode()


def schedule_timer(
    call: str = "call-1",
    due_at: int | str = NOW,
    *,
    tenant: str = "acme",
    envelope: Mapping[str, Any] | None = None,
    **payload: Any,
) -> bytes:
    """Return the body of a ScheduleTimer. `payload` adds fields to the payload or replaces them."""
    due = due_at if isinstance(due_at, str) else iso(due_at)
    fields = {"tenantId": tenant, "serviceCallId": call, "dueAt": due, **payload}
    return command("ScheduleTimer", fields, tenant=tenant, envelope=envelope)


def command_address(tenant: str = "acme", message: str = "schedule-timer") -> Address:
    """Return the address of a command."""
    return Address(Kind.COMMAND, tenant, message)


def raw_command(
    body: bytes = b"",
    *,
    address: Address | None = None,
    headers: Mapping[str, str] | None = None,
    position: Position = FIRST,
    stored_at: int = 0,
) -> RawCommand:
    """Return a command as the broker stores it."""
    address = address or command_address()
    block = headers_of({MESSAGE_ID: f"message-{position.sequence}", **(headers or {})})
    size = len(body) + len(block.block)
    return RawCommand(address, "the source", body, block, position, size, stored_at)


def cancel_timer(call: str = "call-1", *, tenant: str = "acme", envelope: Mapping[str, Any] | None = None) -> bytes:
    """Return the body of a CancelTimer."""
    return command("CancelTimer", {"tenantId": tenant, "serviceCallId": call}, tenant=tenant, envelope=envelope)


def cancel_timers(prefix: str, *, tenant: str = "acme", envelope: Mapping[str, Any] | None = None) -> bytes:
    """Return the body of a CancelTimers."""
    return command("CancelTimers", {"tenantId": tenant, "prefix": prefix}, tenant=tenant, envelope=envelope)


def retry_timer(call: str = "call-1", *, tenant: str = "acme", envelope: Mapping[str, Any] | None = None) -> bytes:
    """Return the body of a RetryTimer."""
    return command("RetryTimer", {"tenantId": tenant, "serviceCallId": call}, tenant=tenant, envelope=envelope)


def wanted(due_at: int = NOW, position: Position = FIRST, *, key: Key = KEY, **fields: Any) -> Schedule:
    """Return the schedule of a ScheduleTimer. Its event id depends on its position."""
    return Schedule(due_at=due_at, event_id=rules.event_id(key, due_at, position), **fields)


def scheduled(
    call: str = "call-1",
    due_at: int = NOW,
    position: Position = FIRST,
    *,
    tenant: str = "acme",
    now: int = NOW,
    **fields: Any,
) -> Timer:
    """Return a new timer of a ScheduleTimer. `fields` are fields of its schedule."""
    key = Key(tenant, call)
    asked = wanted(due_at, position, key=key, **fields)
    return Timer(key, State.SCHEDULED, position, now, asked, available_at=due_at)


def in_state(state: State, timer: Timer, at: int = NOW) -> Timer:
    """Return the timer after it changed to another state at `at`."""
    match state:
        case State.REACHED:
            return timer._replace(state=state, available_at=None, settled_at=at, attempt=1)
        case State.EXPIRED:
            assert timer.schedule is not None
            expires_at = timer.schedule.expires_at or timer.schedule.due_at + 1
            schedule = timer.schedule._replace(expires_at=expires_at)
            settled_at = max(at, expires_at)
            return timer._replace(state=state, schedule=schedule, available_at=None, settled_at=settled_at, attempt=1)
        case State.CANCELLED:
            return timer._replace(state=state, available_at=None, settled_at=at)
        case State.FAILED:
            return timer._replace(state=state, available_at=None, attempt=3, last_error="refused")
        case State.SCHEDULED:
            return timer


def event(number: int = 1, *, tenant: str = "acme", size: int = 2) -> Message:
    """Return an event with a body of `size` bytes. `number` makes its id unique."""
    address = Address(Kind.EVENT, tenant, "due-time-reached")
    return Message(address, f"event-{number}", b"x" * size, {"number": str(number)})
