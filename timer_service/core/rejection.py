"""The dead letter and the event for a command that can never be handled."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_core import to_json

from timer_service.core.broker import Delivery
from timer_service.core.codec import encode, read_trace
from timer_service.core.errors import Code, Rejection
from timer_service.core.message import TENANT_PATTERN, Address, Envelope, Event, Kind, Message, Payload

_MAX_HEADER = 1000
_MAX_HEADERS = 60_000  # JetStream refuses 64 KiB
_ADDED_HEADERS = 1000


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
        return (self.envelope and self.envelope.id) or self.delivery.message_id

    def messages(self, now: int, max_bytes: int) -> list[Message]:
        """Return the messages that must be stored before the delivery is terminated, each at most `max_bytes` large.

        Their ids are derived from the delivery's position, so a second attempt stores nothing twice.
        """
        letter = self._dead_letter(max_bytes)
        if not re.fullmatch(TENANT_PATTERN, self.delivery.address.tenant):
            return [letter]
        return [letter, encode(self._event(now))]

    def reply(self) -> bytes:
        """Return the body of the reply to the client."""
        return to_json({"commandId": self.command_id, "error": error_body(self.rejection)})

    def _dead_letter(self, max_bytes: int) -> Message:
        """Return the whole command with the rejection in its headers. Omit headers or body if they do not fit.

        The omitted part stays in the command stream until it expires. The dead letter has its sequence in the stream.
        """
        delivery = self.delivery
        reasons = {
            "Timer-Error-Code": str(self.rejection.code),
            "Timer-Error-Message": _one_line(self.rejection.message)[:_MAX_HEADER],
            "Timer-Source-Subject": delivery.source,
            "Timer-Source-Sequence": str(delivery.position.sequence),
        }
        headers = {**_rename_broker_headers(delivery.headers), **reasons}
        if _size(headers) > _MAX_HEADERS:
            headers = {**reasons, "Timer-Headers-Omitted": "true"}
        body = delivery.body
        if len(body) + _size(headers) > max_bytes:
            headers, body = {**headers, "Timer-Body-Omitted": "true"}, b""
        address = Address(Kind.DEAD_LETTER, delivery.address.tenant, delivery.address.message)
        return Message(address, f"dlq-{delivery.position.epoch}-{delivery.position.sequence}", body, headers)

    def _event(self, now: int) -> Event:
        command_type = {"commandType": self.envelope.type} if self.envelope else {}
        return Event(
            id=f"rejected-{self.delivery.position.epoch}-{self.delivery.position.sequence}",
            type=CommandRejected.type,
            tenant=self.delivery.address.tenant,
            payload={"commandId": self.command_id, **command_type, **error_body(self.rejection)},
            timestamp_ms=now,
            correlation_id=self.envelope.correlation_id if self.envelope else None,
            causation_id=self.command_id,
            trace=read_trace(self.delivery.headers),
        )


def _size(headers: Mapping[str, str]) -> int:
    """Return the bytes of headers on the wire, with room for headers that a broker adapter adds."""
    return _ADDED_HEADERS + sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())


def _one_line(text: str) -> str:
    """Replace characters that would end a header. The text may quote the sender."""
    return "".join(character if character.isprintable() else " " for character in text)


def _rename_broker_headers(headers: dict[str, str]) -> dict[str, str]:
    """Rename the headers that change how a broker stores a message, for example `Nats-TTL` and `Nats-Rollup`."""
    return {
        f"Timer-Original-{name}" if name.lower().startswith("nats-") else name: value for name, value in headers.items()
    }
