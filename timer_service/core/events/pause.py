"""How long the relay waits while the broker stores nothing."""

SHORTEST_MS = 250
"""The first pause. Timers may be late by this much after a short outage of the broker."""
LONGEST_MS = 5000


class Pause:
    """The pause between two claims. Instants are Unix milliseconds.

    While nothing can be published, each pause is twice as long as the last one, and each claim is a probe of one row.
    So a missing or full stream costs a few claims. A success, or a broker that is back, ends this.
    """

    def __init__(self) -> None:
        self.resume_at = 0
        """When the next claim may begin."""
        self._length_ms = 0
        self._broker_away = False

    @property
    def probing(self) -> bool:
        """Whether the next claim is a probe: nothing of the last claim could be published."""
        return self._length_ms > 0

    def is_over(self, now: int, *, broker_usable: bool) -> bool:
        """Return whether a claim may begin at `now`. While the broker cannot be used, the pause goes on."""
        if not broker_usable:
            self._broker_away = True
            self.shorten(now)
        elif self._broker_away:
            self._broker_away = False
            self._length_ms = 0
        return self._ended(now)

    def shorten(self, now: int) -> None:
        """Pause shortly from `now`: the broker cannot be used, or stored only a part of a claim."""
        self.resume_at = now + SHORTEST_MS

    def lengthen(self, now: int) -> None:
        """Pause from `now` after a claim of which nothing was published. Overlapping claims count as one."""
        if self._ended(now):
            self._length_ms = min(max(2 * self._length_ms, SHORTEST_MS), LONGEST_MS)
            self.resume_at = now + self._length_ms

    def end(self) -> None:
        """End the pauses after a claim that was published."""
        self._length_ms = 0

    def _ended(self, now: int) -> bool:
        # A much longer wait than the longest pause means that the clock was set back. `now` may be a little old.
        return now >= self.resume_at or self.resume_at - now > 2 * LONGEST_MS
