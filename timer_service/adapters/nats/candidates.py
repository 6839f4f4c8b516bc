"""The subjects that may have commands that wait behind a backlog.

The last listing has the number of stored commands of each subject, and deliveries are counted after it. A subject
whose number has grown otherwise has probably got new commands, so it comes first. A number can stay the same although
commands wait: they were stored before the first listing, or as many have expired as were added. So all other subjects
come after these, once in each backlog.
"""

from collections.abc import Collection, Iterator

from timer_service.adapters.nats.listing import read_entry, with_number

MOST_SUBJECTS = 100_000
LONGEST_SUBJECT = 512
"""No valid command has a longer subject. Commands that are not valid need not be found: they are rejected later."""


class Candidates:
    """Subjects to look at, those that have probably got new commands first."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        """The raw entries of the last listing."""
        self._last_known: int | None = None
        """The last sequence of the last listing; None before the first one."""
        self._listed: set[bytes] = set()
        self._delivered: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._others: list[bytes] = []
        self._is_new_backlog = True

    def begin_listing(self) -> None:
        """Begin to compare a new listing with the last one."""
        self._listed = set()

    def compare(self, entries: Collection[bytes]) -> None:
        """Compare a part of the listing. Parts beyond `MOST_SUBJECTS` are left out."""
        if len(self._listed) >= MOST_SUBJECTS:
            return
        new = {raw for raw in entries if len(raw) <= LONGEST_SUBJECT}
        self._listed |= new
        if self._last_known is None:
            return
        for raw in new - self._known:
            subject, number = read_entry(raw)
            before = number - self._delivered.get(subject, 0)
            if before != 0 and with_number(raw, before) not in self._known:
                self._changed[subject] = None

    def end_listing(self, last_sequence: int) -> None:
        """Use the new listing from now on. It has all commands up to `last_sequence`."""
        self._known, self._listed = self._listed, set()
        self._last_known = last_sequence
        self._delivered.clear()
        if self._is_new_backlog:
            self._others = list(self._known)
            self._is_new_backlog = False

    def count_delivered(self, subject: str, sequence: int) -> None:
        """Count a command that the consumer delivered, if the last listing does not have it."""
        if len(subject) > LONGEST_SUBJECT or (len(self._delivered) >= MOST_SUBJECTS and subject not in self._delivered):
            return
        if self._last_known is not None and sequence > self._last_known:
            self._delivered[subject] = self._delivered.get(subject, 0) + 1

    def changed(self) -> Iterator[str]:
        """Yield the subjects that have probably got new commands. Each stays a candidate until it is removed."""
        yield from list(self._changed)

    def others(self) -> Iterator[str]:
        """Yield the other subjects, in random order. Those that are not removed count as changed from now on."""
        while self._others:
            subject, _ = read_entry(self._others.pop())
            self._changed[subject] = None
            yield subject

    def remove(self, subject: str) -> None:
        """Do not look at a subject again before it gets new commands."""
        self._changed.pop(subject, None)

    def forget_backlog(self) -> None:
        """Forget which subjects to look at, because nothing waits long. The last listing stays known."""
        self._changed.clear()
        self._others.clear()
        self._is_new_backlog = True
