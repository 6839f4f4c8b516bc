"""The look whether another process handles the commands, before this one takes them over.

Only for a database that processes cannot share: another living process must have a copy of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from timer_service.core.values.errors import StartError

_LOOKS = 10
_LOOK_SECONDS = 0.3
_QUIET_LOOKS = 3  # a living service may need almost a second for one command
_IDLE_LOOK_SECONDS = 0.05
_IDLE_LOOKS = 3  # a living service without commands has no pull for a moment, before it sends the next one

ConsumerInfo = Mapping[str, Any]


async def check_unused(stream: str, found: ConsumerInfo, look: Callable[[], Awaitable[ConsumerInfo]]) -> None:
    """Raise `StartError` if another process uses the consumer: it pulls or settles commands during some looks.

    `found` is the JetStream info of the consumer, and `look` returns it again. The pull of a dead process ends after
    1 s.
    """
    quiet, idle = 0, int(_is_idle(found))
    for _ in range(_LOOKS):
        await asyncio.sleep(_IDLE_LOOK_SECONDS if idle else _LOOK_SECONDS)
        before, found = found, await look()
        works = found["num_waiting"] or _progress(found) != _progress(before)
        quiet = 0 if works else quiet + 1
        idle = idle + 1 if _is_idle(found) and not works else 0
        if quiet == _QUIET_LOOKS or idle == _IDLE_LOOKS:
            return
    raise StartError(
        f"another service with a copy of this database handles the commands of stream {stream}. Stop it. To "
        "try out a copy, for example a restored backup, use another broker or another TIMER_SUBJECT_PREFIX"
    )


def _is_idle(consumer: ConsumerInfo) -> bool:
    """Return whether no process waits for commands, and none has any."""
    return not consumer["num_waiting"] and not consumer["num_ack_pending"]


def _progress(consumer: ConsumerInfo) -> tuple[int, int]:
    """Return how many commands the consumer has delivered, and how many of them are settled without a gap."""
    return consumer["delivered"]["consumer_seq"], consumer["ack_floor"]["consumer_seq"]
