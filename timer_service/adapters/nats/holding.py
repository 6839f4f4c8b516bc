"""The holding: which process handles the commands of a database that processes cannot share.

Each such process writes a random token into the consumer's metadata when it joins. The newest token wins. A process
that finds another token there has lost the commands, for ever: another process uses a copy of its database. This also
happens if two are started at the same moment, or if one was stopped for some time (SIGSTOP, a paused machine) and
looked dead to the other.
"""

import asyncio
import math
import secrets
import time
from collections.abc import Mapping
from typing import Any

from timer_service.core.values.errors import StartError

HOLDER = "timer-service.holder"
"""The metadata key of the token."""
# Unlike the monotonic clock, this clock goes on while the machine sleeps. Only Linux has it.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class TakenOverError(StartError):
    """Another process has taken over the commands. This process must not handle any more of them."""


class Holding:
    """What this process knows about its token. Before `begin` it has none, and nothing can be lost."""

    def __init__(self, stream: str) -> None:
        """`stream`: the name of the command stream."""
        self.token = secrets.token_hex(16)
        self.taken_over = asyncio.Event()
        """Set when another process has taken over."""
        self._stream = stream
        self._begun = False
        self._replaced: str | None = None
        self._confirmed_at = -math.inf

    def begin(self, found: Mapping[str, Any] | None) -> None:
        """Begin to hold the consumer: the token is about to be written over that of `found`, the consumer's config.

        Until it was seen there once, the replaced token shows only that the write is still to come, or has failed.
        """
        self._begun = True
        if self._confirmed_at == -math.inf:
            self._replaced = holder(found)

    @property
    def reason(self) -> str:
        """What has happened after a take-over, and what to do."""
        return (
            f"another service with a copy of this database has taken over the commands of stream {self._stream}. "
            "Decide which database shall stay, and stop the other service for good. What that one has handled since "
            "the copy was made is only in its database: let the one that stays handle it again with "
            "`timer-service replay --since`. To try out a copy, use another broker or another TIMER_SUBJECT_PREFIX"
        )

    def is_confirmed(self, seconds: float) -> bool:
        """Return whether the token was seen at the consumer in the last seconds, or none was ever written."""
        return not self._begun or (not self.taken_over.is_set() and _now() - self._confirmed_at <= seconds)

    def look(self) -> float:
        """Return the instant of a look at the consumer that begins now, for `check`."""
        return _now()

    def check(self, config: Mapping[str, Any], looked_at: float = -math.inf) -> bool:
        """Return whether the consumer has the token. Raises `TakenOverError` if it has that of another process."""
        if not self._begun:
            return False
        found = holder(config)
        if found == self.token:
            self._replaced = None
        elif found not in {None, self._replaced}:
            self.taken_over.set()
        if self.taken_over.is_set():
            raise TakenOverError(self.reason)
        if found == self.token:
            self._confirmed_at = max(self._confirmed_at, looked_at)
        return found == self.token


def holder(config: Mapping[str, Any] | None) -> str | None:
    """Return the token of the process that handles the commands; None if there is no consumer, or no token."""
    token: str | None = None if config is None else config.get("metadata", {}).get(HOLDER)
    return token


def _now() -> float:
    return time.clock_gettime(_CLOCK)
