"""Which pending commands of a run name a job. The reports of one run can name 640,000 jobs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from timer_service.core.message import Position


class PendingIndex:
    """The positions of pending commands by the names of jobs in them.

    Most names are in one command, so only the others have a list. A set for each name took 0.7 s and 150 MB.
    """

    def __init__(self) -> None:
        self._first: dict[str, Position] = {}
        self._others: defaultdict[str, list[Position]] = defaultdict(list)

    def add(self, names: Iterable[str], position: Position) -> None:
        """Add a command that names jobs."""
        for name in names:
            if self._first.setdefault(name, position) != position:
                self._others[name].append(position)

    def find(self, name: str) -> Iterator[Position]:
        """Yield the positions of the commands that name a job, perhaps several times."""
        if (first := self._first.get(name)) is not None:
            yield first
            yield from self._others.get(name, ())
