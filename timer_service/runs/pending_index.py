"""Which pending reports name which unknown jobs. The reports of one run can name 40,000."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from timer_service.core.message import Position


class PendingIndex:
    """The positions of pending reports by the unknown jobs in them. Each job becomes known once."""

    def __init__(self) -> None:
        self._positions: defaultdict[str, list[Position]] = defaultdict(list)
        self._unknown: dict[Position, int] = {}

    def copy(self) -> "PendingIndex":
        """Return a copy for a draft of its own. They share the names: `take` looks only for pending reports."""
        copied = PendingIndex()
        copied._positions, copied._unknown = self._positions, self._unknown.copy()
        return copied

    def add(self, position: Position, unknown: Collection[str]) -> None:
        """Add a report with the unknown jobs that it names."""
        self._unknown[position] = len(unknown)
        for name in unknown:
            self._positions[name].append(position)

    def take(
        self, names: Iterable[str], pending: Collection[Position]
    ) -> tuple[Mapping[Position, Collection[str]], Collection[Position]]:
        """Count jobs as known. Return the `pending` reports that name some of them, with these jobs.

        Return also which of these reports name no other unknown job.
        """
        found: dict[Position, dict[str, None]] = {}
        for name in names:
            for position in self._positions.get(name, ()):
                if position in pending:
                    found.setdefault(position, {})[name] = None
        for position, known in found.items():
            self._unknown[position] -= len(known)
        return found, [position for position in found if not self._unknown[position]]
