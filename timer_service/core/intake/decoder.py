"""Decodes commands without blocking the event loop for long."""

import asyncio
from collections.abc import Mapping, Sequence

from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports.turns import Turns
from timer_service.core.values.address import kebab
from timer_service.core.values.codec import decode_command, decode_envelope, decode_usual_command
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Command, Envelope, TenantPayload
from timer_service.core.values.raw_command import RawCommand

LARGE_BYTES = 64 * 1024
"""Decoding them takes 10 ms at most. A single command that has more is decoded in a thread: it may take 150 ms.

Most of this time is one call into C, which stops the event loop too.
"""


async def decode(batch: Sequence[RawCommand], payloads: Mapping[str, type[TenantPayload]]) -> list[Command | Rejected]:
    """Decode commands. Return one result for each. `payloads` maps each known type to its model.

    Other tasks run between large commands, and every millisecond. After a large command that is refused, other tasks
    run for as long as it took. See docs/decisions/0025.
    """
    decoded: list[Command | Rejected] = []
    models = {kebab(name): model for name, model in payloads.items()}
    turns = Turns(LARGE_BYTES, pauses=True)
    for raw in batch:
        if raw.size > LARGE_BYTES:
            decoded.append(await _decode_large(raw, models, payloads))
            turns = Turns(LARGE_BYTES, pauses=True)
            continue
        if turns.count(raw.size):
            await turns.begin(raw.size)
        decoded.append(_decode(raw, models, payloads))
    await turns.take(0)
    return decoded


async def _decode_large(
    raw: RawCommand, models: Mapping[str, type[TenantPayload]], payloads: Mapping[str, type[TenantPayload]]
) -> Command | Rejected:
    """Decode a large command in a thread. If it is refused, wait for as long as that took.

    Parsing stops the other tasks also in a thread. After a valid command, they run while it is applied.
    """
    turns = Turns(LARGE_BYTES, pauses=True)
    command = await asyncio.to_thread(_decode, raw, models, payloads)
    if isinstance(command, Rejected):
        await turns.begin(0)
    return command


def _decode(
    raw: RawCommand, models: Mapping[str, type[TenantPayload]], payloads: Mapping[str, type[TenantPayload]]
) -> Command | Rejected:
    """Return a command, decoded in one pass if it is a usual one. `models`: `payloads`, by the names in addresses."""
    return decode_usual_command(raw, models) or _decode_in_steps(raw, payloads)


def _decode_in_steps(raw: RawCommand, payloads: Mapping[str, type[TenantPayload]]) -> Command | Rejected:
    """Return a command, or its rejection with the faults and with as much of the envelope as could be read."""
    envelope: Envelope | None = None
    if raw.left_bytes:
        return Rejected(raw, Rejection(Code.INTERNAL, "the broker removed this command before it was handled"), None)
    try:
        envelope = decode_envelope(raw.body)
        return decode_command(raw, envelope, payloads)
    except Rejection as rejection:
        return Rejected(raw, _without_context(rejection), _without_payload(envelope))


def reject(raw: RawCommand, rejection: Rejection) -> Rejected:
    """Return the rejection of a command that could be decoded."""
    return Rejected(raw, rejection, _without_payload(decode_envelope(raw.body)))


def _without_context(rejection: Rejection) -> Rejection:
    """Return a rejection without its cause and traceback, which would keep the decoded command in memory."""
    rejection.__cause__ = rejection.__context__ = None
    return rejection.with_traceback(None)


def _without_payload(envelope: Envelope | None) -> Envelope | None:
    """Return an envelope without its payload, which may take much memory; None for None."""
    return envelope and envelope.model_copy(update={"payload": {}})
