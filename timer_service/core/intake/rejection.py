"""A rejected command: the dead letter, the event and the reply for a command that can never be handled."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_core import to_json

from timer_service.core.values.codec import encode, read_trace
from timer_service.core.values.dead_letter import dead_letter, letter_id, printable, smallest_dead_letter
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import TENANT_PATTERN, Envelope, Event, Message, Payload


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
    """A rejected delivery, with its envelope if that could be read."""

    delivery: Delivery
    rejection: Rejection
    envelope: Envelope | None

    @property
    def command_id(self) -> str:
        """The command's own id if it could be read, else the broker's id."""
        return (self.envelope and self.envelope.id) or printable(self.delivery.message_id)

    @property
    def message_ids(self) -> tuple[str, str]:
        """The ids of the dead letter and of the event. They are derived from the position of the delivery."""
        return letter_id(self.delivery.position), self._event_id

    @property
    def _event_id(self) -> str:
        return f"rejected-{self.delivery.position.epoch}-{self.delivery.position.sequence}"

    def messages(self, now: int, max_bytes: int) -> list[Message]:
        """Return the messages that must be stored before the delivery is terminated, each at most `max_bytes` large.

        The dead letter is the first. If the tenant is known, the event follows. A second attempt returns the same ids,
        so that nothing is stored twice.
        """
        letter = dead_letter(self.delivery, self.rejection, max_bytes)
        if not re.fullmatch(TENANT_PATTERN, self.delivery.address.tenant):
            return [letter]
        return [letter, encode(self._event(now))]

    def smallest_letter(self) -> Message:
        """Return the dead letter without the command's body and headers."""
        return smallest_dead_letter(self.delivery, self.rejection)

    def reply(self) -> bytes:
        """Return the body of the reply to the client."""
        return to_json({"commandId": self.command_id, "error": error_body(self.rejection)})

    def _event(self, now: int) -> Event:
        command_type = {"commandType": self.envelope.type} if self.envelope else {}
        return Event(
            id=self._event_id,
            type=CommandRejected.type,
            tenant=self.delivery.address.tenant,
            payload={"commandId": self.command_id, **command_type, **error_body(self.rejection)},
            timestamp_ms=now,
            correlation_id=self.envelope.correlation_id if self.envelope else None,
            causation_id=self.command_id,
            trace=read_trace(self.delivery.headers),
        )
