"""What becomes of a command that can never be handled: a dead letter, and an event that tells its tenant."""

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
    """One thing wrong with a command: the path of the field and why."""

    path: str
    reason: str


class CommandRejected(Payload):
    """A command was rejected; it is kept whole in the dead letters."""

    type: ClassVar[str] = "CommandRejected"

    command_id: str
    command_type: str | None = None
    code: Code
    message: str
    errors: list[FieldFault] | None = None


def error_body(rejection: Rejection) -> dict[str, Any]:
    """Return a rejection as events, replies and answers carry it."""
    verdict: dict[str, Any] = {"code": rejection.code, "message": rejection.message}
    if rejection.faults:
        verdict["errors"] = [{"path": fault.path, "reason": fault.reason} for fault in rejection.faults]
    return verdict


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected delivery, and as much of it as could be read."""

    delivery: Delivery
    rejection: Rejection
    envelope: Envelope | None

    @property
    def command_id(self) -> str:
        """The command's own id if it could be read, else the broker's."""
        return (self.envelope and self.envelope.id) or self.delivery.message_id

    def messages(self, now: int, max_bytes: int) -> list[Message]:
        """Return what must be stored before the delivery may be terminated, none of it larger than `max_bytes`.

        The ids follow from the delivery's position, so that doing this again stores nothing twice.
        """
        letter = self._dead_letter(max_bytes)
        if not re.fullmatch(TENANT_PATTERN, self.delivery.address.tenant):
            return [letter]
        return [letter, encode(self._event(now))]

    def reply(self) -> bytes:
        """Return the answer to whoever asked for the outcome."""
        return to_json({"commandId": self.command_id, "error": error_body(self.rejection)})

    def _dead_letter(self, max_bytes: int) -> Message:
        """Keep the command whole, or of one that only just fits into a message as much as fits beside the verdict.

        What is left out is in the stream of commands for as long as that keeps it, at the sequence the letter names.
        """
        delivery = self.delivery
        verdict = {
            "Timer-Error-Code": str(self.rejection.code),
            "Timer-Error-Message": _one_line(self.rejection.message)[:_MAX_HEADER],
            "Timer-Source-Subject": delivery.source,
            "Timer-Source-Sequence": str(delivery.position.sequence),
        }
        headers = {**_harmless(delivery.headers), **verdict}
        if _size(headers) > _MAX_HEADERS:
            headers = {**verdict, "Timer-Headers-Omitted": "true"}
        body = delivery.body
        if len(body) + _size(headers) > max_bytes:
            headers, body = {**headers, "Timer-Body-Omitted": "true"}, b""
        address = Address(Kind.DEAD_LETTER, delivery.address.tenant, delivery.address.message)
        return Message(address, f"dlq-{delivery.position.epoch}-{delivery.position.sequence}", body, headers)

    def _event(self, now: int) -> Event:
        kind = {"commandType": self.envelope.type} if self.envelope else {}
        return Event(
            id=f"rejected-{self.delivery.position.epoch}-{self.delivery.position.sequence}",
            type=CommandRejected.type,
            tenant=self.delivery.address.tenant,
            payload={"commandId": self.command_id, **kind, **error_body(self.rejection)},
            timestamp_ms=now,
            correlation_id=self.envelope.correlation_id if self.envelope else None,
            causation_id=self.command_id,
            trace=read_trace(self.delivery.headers),
        )


def _size(headers: Mapping[str, str]) -> int:
    """Return what headers take on the wire, with room for those that a broker adapter adds."""
    return _ADDED_HEADERS + sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())


def _one_line(text: str) -> str:
    """Keep what a sender wrote from ending the header it is quoted in."""
    return "".join(character if character.isprintable() else " " for character in text)


def _harmless(headers: dict[str, str]) -> dict[str, str]:
    """Rename headers that a broker would obey (expectations, roll-ups, time to live) when the letter is stored."""
    return {
        f"Timer-Original-{name}" if name.lower().startswith("nats-") else name: value for name, value in headers.items()
    }
