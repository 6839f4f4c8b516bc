"""When and how much a relay claims: pauses while the broker stores nothing, overlapping claims, bytes of a claim."""

import asyncio
from collections.abc import Callable, Sequence

from timer_service.core.events.settlement import Settlement
from timer_service.core.ports.database import Row

SHORTEST_MS = 250
"""The first pause. Timers may be late by this much after a short outage of the broker."""
LONGEST_MS = 5000
_OVERLAPPING_BATCHES = 3
"""One is claimed or settled, one is encoded and sent, and the broker stores one."""


class Pause:
    """The pause between two claims. Instants are Unix milliseconds.

    While nothing can be published, each pause is twice as long as the last one, and each claim is a probe of one row.
    """

    def __init__(self) -> None:
        self.resume_at = 0
        """When the next claim may begin."""
        self._length_ms = 0

    @property
    def probing(self) -> bool:
        """Whether the next claim is a probe: nothing of the last claim could be published."""
        return self._length_ms > 0

    def is_over(self, now: int) -> bool:
        """Return whether a claim may begin at `now`."""
        # If the end is further away than any pause is long, the clock was set back. Twice, because `now` may be old.
        return now >= self.resume_at or self.resume_at - now > 2 * LONGEST_MS

    def restart(self, now: int) -> None:
        """Pause from `now` as at the beginning, because the broker cannot be used."""
        self.end()
        self.shorten(now)

    def shorten(self, now: int) -> None:
        """Pause shortly from `now`: the broker cannot be used, or stored only a part of a claim."""
        self.resume_at = now + SHORTEST_MS

    def lengthen(self, now: int) -> None:
        """Pause from `now` after a claim of which nothing was published."""
        if self.is_over(now):  # otherwise a claim that overlapped with this one has begun the pause
            self._length_ms = min(max(2 * self._length_ms, SHORTEST_MS), LONGEST_MS)
            self.resume_at = now + self._length_ms

    def end(self) -> None:
        """Let the next pause be the shortest one, and the next claim a whole one. A pause in progress goes on."""
        self._length_ms = 0


class Flight:
    """The claims of a pass that are being published."""

    def __init__(self) -> None:
        self.publishing: set[asyncio.Task[Settlement | None]] = set()
        """The tasks that publish them. Each returns how to settle its claim; None if it has done so."""
        self.published: list[Settlement] = []
        """How to settle those that were published."""
        self._errors: list[BaseException] = []

    def take_published(self) -> list[Settlement]:
        """Return what must be settled, and forget it."""
        taken, self.published = self.published, []
        return taken

    async def wait_for_room(self, *, is_alone: bool) -> None:
        """Wait until another claim may be published; after one that `is_alone`, until none is left.

        Raises the first error.
        """
        most = 0 if is_alone else _OVERLAPPING_BATCHES - 1
        while len(self.publishing) > most:
            await self.wait()
            self.raise_first()

    async def wait(self, *, for_all: bool = False) -> None:
        """Wait until a claim was published, or all of them were. Keep the settlements and the errors."""
        if not self.publishing:
            return
        how = asyncio.ALL_COMPLETED if for_all else asyncio.FIRST_COMPLETED
        finished, self.publishing = await asyncio.wait(self.publishing, return_when=how)
        for task in finished:
            if (error := task.exception()) is not None:
                self._errors.append(error)
            elif (settlement := task.result()) is not None:
                self.published.append(settlement)

    def raise_first(self) -> None:
        """Raise the first error."""
        if self._errors:
            raise self._errors[0]


def share_lengths(
    rows: Sequence[Row], length_of: Callable[[Row], int], most: int
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows of a claim to publish now, and those to release.

    If the rows have more than `most` characters, each tenant gets an equal share for its first rows, and at least one
    row. So the events of others do not wait until the long texts of one tenant are published.
    """
    if sum(map(length_of, rows)) <= most:
        return rows, []
    share = most // len({row["tenant_id"] for row in rows})
    used: dict[str, int] = {}
    kept: list[Row] = []
    left: list[Row] = []
    for row in rows:
        tenant = row["tenant_id"]
        is_first = tenant not in used
        used[tenant] = used.get(tenant, 0) + length_of(row)
        (kept if is_first or used[tenant] <= share else left).append(row)
    return kept, left
