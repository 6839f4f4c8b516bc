"""A rejected command: the dead letter, the event and the reply for a command that can never be handled."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_core import to_json

from timer_service.core.values.address import TENANT_PATTERN
from timer_service.core.values.codec import read_trace
from timer_service.core.values.dead_letter import dead_letter, printable
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Envelope, Event, Message, Payload
from timer_service.core.values.raw_command import RawCommand


class FieldFault(Payload):
    """One fault of a command: the path of the field and the reason."""

    path: str
    reason: str


class CommandRejected(Payload):
    """A command was rejected. It is stored whole as a dead letter."""

    type: ClassVar[str] = "CommandRejected"

    command_id: str
    command_type: str | None = None
    code: Code
    message: str
    errors: list[FieldFault] | None = None


def error_body(rejection: Rejection) -> dict[str, Any]:
    """Return a rejection as it appears in events and replies."""
    body: dict[str, Any] = {"code": rejection.code, "message": rejection.message}
    if rejection.faults:
        body["errors"] = [{"path": fault.path, "reason": fault.reason} for fault in rejection.faults]
    return body


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected command, with its envelope if that could be read."""

    raw: RawCommand
    rejection: Rejection
    envelope: Envelope | None

    @property
    def own_id(self) -> str | None:
        """The id that the sender gave the command or its message, if there is one that could be read."""
        return (self.envelope.id if self.envelope is not None else None) or self.raw.sent_id

    @property
    def command_id(self) -> str:
        """The command's own id if it has one that could be read, else the broker's id."""
        return self.own_id or printable(self.raw.message_id)

    def letter(self, max_bytes: int) -> Message:
        """Return the dead letter, which is at most `max_bytes` large. It always has the same id."""
        return dead_letter(self.raw, self.rejection, max_bytes)

    def event(self, now: int) -> Event | None:
        """Return the event for the tenant; None if no tenant can have the name. It always has the same id."""
        if not re.fullmatch(TENANT_PATTERN, self.raw.address.tenant):
            return None
        command_type = {"commandType": self.envelope.type} if self.envelope else {}
        return Event(
            id=f"rejected-{self.raw.position.epoch}-{self.raw.position.sequence}",
            type=CommandRejected.type,
            tenant=self.raw.address.tenant,
            payload={"commandId": self.command_id, **command_type, **error_body(self.rejection)},
            timestamp_ms=now,
            correlation_id=self.envelope.correlation_id if self.envelope else None,
            causation_id=self.command_id,
            trace=read_trace(self.raw.headers),
        )

    def reply(self) -> bytes:
        """Return the body of the reply to the client."""
        return to_json({"commandId": self.command_id, "error": error_body(self.rejection)})
