"""PORT: what the core tells about itself, free of any metrics library."""

from typing import Protocol


class MetricsPort(Protocol):
    """Counts and times. No tenant is ever told: it would make the number of series unbounded."""

    def command_handled(self, message_type: str, outcome: str) -> None:
        """One command ended in its one outcome."""
        ...

    def dead_letter_stored(self, code: str) -> None:
        """One command was rejected and kept."""
        ...

    def claimed(self, count: int) -> None:
        """One claim took `count` rows."""
        ...

    def published(self, seconds: float) -> None:
        """One batch was published (or not) within `seconds`."""
        ...

    def publish_failed(self, status: str, count: int) -> None:
        """`count` messages of a batch were refused, or the broker was unavailable to them."""
        ...

    def settled(self, table: str, outcome: str, count: int) -> None:
        """`count` claimed rows of a table were settled alike."""
        ...

    def fired_late(self, table: str, seconds: float) -> None:
        """What one row stands for was done `seconds` after it was due."""
        ...

    def leases_lost(self, count: int) -> None:
        """`count` rows had been claimed anew or changed before they were settled."""
        ...

    def buried(self, table: str, count: int) -> None:
        """`count` rows were given up."""
        ...

    def counted(self, table: str, state: str, count: int) -> None:
        """A sample found `count` rows of a table in a state."""
        ...

    def overdue(self, table: str, count: int, oldest_seconds: float) -> None:
        """A sample found `count` rows of a table that could be claimed, the oldest since `oldest_seconds`."""
        ...

    def clock_measured(self, offset_seconds: float) -> None:
        """The clock that decides is `offset_seconds` ahead of this machine's."""
        ...

    def ticked(self, loop: str, seconds: float) -> None:
        """A loop made a pass."""
        ...
