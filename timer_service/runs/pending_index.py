"""Which pending reports name which unknown jobs. The reports of one run can name 40,000."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter

from timer_service.core.values.message import Position


class PendingIndex:
    """The positions of pending reports by the unknown jobs in them. Each job becomes known once."""

    def __init__(self) -> None:
        self._places: defaultdict[str, list[tuple[Position, int]]] = defaultdict(list)
        """For each job, the reports that name it, and how many other unknown jobs each names before it."""
        self._unknown: dict[Position, int] = {}

    def copy(self) -> "PendingIndex":
        """Return a copy for a draft of its own. They share the names: `take` looks only for pending reports."""
        copied = PendingIndex()
        copied._places, copied._unknown = self._places, self._unknown.copy()
        return copied

    def add(self, position: Position, unknown: Collection[str]) -> None:
        """Add a report with the unknown jobs that it names, each once, in its order."""
        self._unknown[position] = len(unknown)
        for place, name in enumerate(unknown):
            self._places[name].append((position, place))

    def take(
        self, names: Iterable[str], pending: Collection[Position]
    ) -> tuple[Mapping[Position, Collection[str]], Collection[Position]]:
        """Count jobs as known. Return the `pending` reports that name some of them, with these jobs.

        The jobs are in the order of the report: the first one is the reason why a job is skipped.
        Return also which of these reports name no other unknown job.
        """
        found: dict[Position, dict[str, int]] = {}
        for name in names:
            for position, place in self._places.get(name, ()):
                if position in pending:
                    found.setdefault(position, {})[name] = place
        for position, known in found.items():
            self._unknown[position] -= len(known)
            if len(known) > 1:
                found[position] = dict(sorted(known.items(), key=itemgetter(1)))
        return found, [position for position in found if not self._unknown[position]]
