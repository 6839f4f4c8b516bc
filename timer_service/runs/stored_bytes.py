"""The bytes that a run takes in the database because its rows repeat ids and names, and those of its payloads. Pure.

A row repeats the id of its run, and so does each index of it. A command of 160 KB with 10,000 jobs and a run id of
800 bytes would write 40 MB in one transaction. The event of a ready job repeats its payload, and one report can make
10,000 jobs ready: with 64 KiB each, it would write 640 MB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.runs.graph import Edge, Flaw
from timer_service.runs.messages import MAX_PAYLOAD_BYTES, MAX_STORED_BYTES, FlawCode, NewJob
from timer_service.runs.rules import Run

_LONGEST_SHORT_KEY = 900
_LONG_KEY_BYTES = 4608
"""What a longer key takes in an index of SQLite: a page of its own for the end of the key."""


class RunBytes(NamedTuple):
    """How the bytes of a run are counted."""

    run_id: int
    """The bytes of its id."""
    cause: int
    """The bytes of the ids and the trace that each of its events repeats."""

    @classmethod
    def of(cls, run_id: str, cause: Cause) -> "RunBytes":
        """Return how the bytes of a run with this id and cause are counted."""
        repeated = (cause.command_id, cause.correlation_id, *cause.trace)
        return cls(name_bytes([run_id]), name_bytes(each for each in repeated if each is not None))

    def job(self, name: int, group: int = 0) -> int:
        """Return the bytes of a job, by the bytes of its name and group: two rows, three index entries and an event."""
        key = self.run_id + name
        return 3 * key + 3 * _in_index(key) + 2 * group + self.cause

    def group(self, name: int) -> int:
        """Return the bytes of a group, by the bytes of its name: a row and an index entry."""
        key = self.run_id + name
        return key + _in_index(key)

    def group_need(self, job: int, group: int) -> int:
        """Return the bytes of a need of an unresolved group: a row and an index entry."""
        return self.group(job + group)

    def groups(self, names: Iterable[str]) -> int:
        """Return the bytes of groups."""
        return sum(self.group(name_bytes([name])) for name in names)


def count_jobs(
    run: Run, new: Sequence[NewJob], members: Mapping[str, Sequence[str]], downstream: Iterable[Edge], group: str | None
) -> Run | Flaw:
    """Return a run with the bytes of `new` jobs of a `group` counted, or the job with which it has too many.

    The other arguments are those of `check_size`, which comes first.
    """
    stored, payloads = run.stored_bytes, run.payload_bytes
    for name, size in count_bytes(new, members, downstream, group, RunBytes.of(run.key.run_id, run.cause)):
        stored += size
        if stored > MAX_STORED_BYTES:
            return Flaw(FlawCode.TOO_LARGE, [name])
    for job in new:
        if job.payload_text is not None:
            payloads += name_bytes([job.payload_text])
            if payloads > MAX_PAYLOAD_BYTES:
                return Flaw(FlawCode.TOO_LARGE, [job.name])
    return run._replace(stored_bytes=stored, payload_bytes=payloads)


def name_bytes(names: Iterable[str]) -> int:
    """Return the bytes of names."""
    return len("".join(names).encode())


def count_bytes(
    new: Sequence[NewJob],
    members: Mapping[str, Sequence[str]],
    downstream: Iterable[Edge],
    group: str | None,
    counted: RunBytes,
) -> Iterator[tuple[str, int]]:
    """Yield the jobs that get bytes when `new` jobs are added, and these bytes."""
    of_new = name_bytes(job.name for job in new)
    for edge in downstream:
        yield edge.job, of_new + len(new) * name_bytes([edge.job])
    own_group = name_bytes([group or ""])
    groups = {each for job in new for each, _ in job.needed_groups}
    of_groups = {each: name_bytes([each]) for each in groups}
    of_members = {each: name_bytes(members[each]) for each in groups if each in members}
    for job in new:
        own = name_bytes([job.name])
        size = counted.job(own, own_group)
        size += name_bytes(name for name, _ in job.needed_jobs) + len(job.needed_jobs) * own
        for each, _ in job.needed_groups:
            if each in members:
                size += of_members[each] + len(members[each]) * own
            else:
                size += counted.group_need(own, of_groups[each])
        yield job.name, size


def _in_index(key: int) -> int:
    return key if key <= _LONGEST_SHORT_KEY else _LONG_KEY_BYTES
