"""Decodes the deliveries of a batch without blocking the event loop for long."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports.turns import Turns
from timer_service.core.values.codec import decode_command, decode_envelope, decode_usual_command
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import Rejection
from timer_service.core.values.message import Command, Envelope, TenantPayload, kebab

LARGE_BYTES = 64 * 1024
"""Decoding them takes 10 ms at most. A single command that has more is decoded in a thread: it may take 150 ms.

Most of this time is one call into C, which stops the event loop too.
"""
_LONGEST_MS = 50
"""After this time, decoding ends. What is decoded is applied first."""
_PER_READING = 4
"""How many commands are decoded between two readings of the clock, which take 2 µs each. Decoding takes 7 to 30 µs."""


class Decoded(NamedTuple):
    """The decoded deliveries of a batch, and the rejected ones."""

    commands: list[tuple[Delivery, Command]]
    rejected: list[Rejected]
    left: Sequence[Delivery] = ()
    """The last deliveries, if decoding them would take too long."""


async def decode(
    batch: Sequence[Delivery], payloads: Mapping[str, type[TenantPayload]], now: Callable[[], int]
) -> Decoded:
    """Decode deliveries for 50 ms, at least one. Other tasks run between large commands, and every millisecond.

    After a large command that is refused, other tasks run for as long as it took. See docs/decisions/0085.

    `payloads` maps each known type to its model. `now` returns milliseconds.
    """
    decoded = Decoded([], [])
    models = {kebab(name): model for name, model in payloads.items()}
    turns = Turns(LARGE_BYTES, pauses=True)
    began = now()
    for number, delivery in enumerate(batch):
        if number and number % _PER_READING == 0 and not 0 <= now() - began < _LONGEST_MS:
            return decoded._replace(left=batch[number:])
        if delivery.size > LARGE_BYTES:
            turns = Turns(LARGE_BYTES, pauses=True)
            command = await asyncio.to_thread(_decode, delivery, models, payloads)
            if isinstance(command, Rejected):
                await turns.begin(0)  # parsing stops the other tasks also in a thread
            else:
                turns = Turns(LARGE_BYTES, pauses=True)  # they run while it is applied
        else:
            if turns.ends(delivery.size):
                await turns.begin(delivery.size)
            command = _decode(delivery, models, payloads)
        if isinstance(command, Rejected):
            decoded.rejected.append(command)
        else:
            decoded.commands.append((delivery, command))
    await turns.take(0)
    return decoded


def _decode(
    delivery: Delivery, models: Mapping[str, type[TenantPayload]], payloads: Mapping[str, type[TenantPayload]]
) -> Command | Rejected:
    return decode_usual_command(delivery, models) or _decode_in_steps(delivery, payloads)


def _decode_in_steps(delivery: Delivery, payloads: Mapping[str, type[TenantPayload]]) -> Command | Rejected:
    envelope: Envelope | None = None
    try:
        envelope = decode_envelope(delivery.body)
        return decode_command(delivery, envelope, payloads)
    except Rejection as rejection:
        return Rejected(delivery, _without_context(rejection), _without_payload(envelope))


def reject(delivery: Delivery, rejection: Rejection) -> Rejected:
    """Return the rejection of a delivery that could be decoded."""
    return Rejected(delivery, rejection, _without_payload(decode_envelope(delivery.body)))


def parts(batch: Sequence[Delivery], most_bytes: int) -> Iterator[list[Delivery]]:
    """Yield parts of a batch, each of at most `most_bytes`. A single command may have more."""
    part: list[Delivery] = []
    size = 0
    for delivery in batch:
        if part and size + delivery.size > most_bytes:
            yield part
            part, size = [], 0
        part.append(delivery)
        size += delivery.size
    if part:
        yield part


def _without_context(rejection: Rejection) -> Rejection:
    """Return a rejection without its cause and traceback, which would keep the decoded command in memory."""
    rejection.__cause__ = rejection.__context__ = None
    return rejection.with_traceback(None)


def _without_payload(envelope: Envelope | None) -> Envelope | None:
    return envelope and envelope.model_copy(update={"payload": {}})
