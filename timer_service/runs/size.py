"""How large a run is, counted before anything is built. Pure.

The rows of a run and their indexes repeat its id and the names of its jobs. A JobReady repeats a payload, and one
report can make 10,000 jobs ready. Ten thousand jobs that need a group of ten thousand would have a hundred million
needs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from timer_service.runs.graph import Edge, Flaw
from timer_service.runs.messages import (
    MAX_JOBS,
    MAX_NEEDS,
    MAX_PAYLOAD_BYTES,
    MAX_STORED_BYTES,
    FlawCode,
    NewJob,
)
from timer_service.runs.rules import Run

_ROWS_OF_JOB = 6
"""How often a job repeats its name and the id of its run: in two rows, three entries of indexes and an event."""


def count_jobs(
    run: Run,
    new: Sequence[NewJob],
    members: Mapping[str, Sequence[str]],
    downstream: Sequence[Edge],
    group: str | None,
    *,
    jobs: int,
    needs: int,
) -> Run | Flaw:
    """Count the bytes of `new` jobs of a `group`. Return the run with them, or the flaw that it is too large.

    `jobs` and `needs` are the counts so far, `members` the jobs of resolved groups, and `downstream` the edges to the
    jobs that need the group.
    """
    if jobs + len(new) > MAX_JOBS:
        return Flaw(FlawCode.TOO_LARGE, [new[MAX_JOBS - jobs].name])
    stored, payloads = run.stored_bytes, run.payload_bytes
    for name, more_needs, size in _count_each(run, new, members, downstream, group):
        needs += more_needs
        stored += size
        if needs > MAX_NEEDS or stored > MAX_STORED_BYTES:
            return Flaw(FlawCode.TOO_LARGE, [name])
    for job in new:
        payloads += _bytes([job.payload_text or ""])
        if payloads > MAX_PAYLOAD_BYTES:
            return Flaw(FlawCode.TOO_LARGE, [job.name])
    return run._replace(stored_bytes=stored, payload_bytes=payloads)


def bytes_of_groups(run_id: str, groups: Sequence[str]) -> int:
    """Return the bytes that the groups of a new run take: each has a row and an entry of an index."""
    return 2 * (len(groups) * _bytes([run_id]) + _bytes(groups))


def _count_each(
    run: Run, new: Sequence[NewJob], members: Mapping[str, Sequence[str]], downstream: Iterable[Edge], group: str | None
) -> Iterator[tuple[str, int, int]]:
    """Yield each job that gets needs or bytes, with their numbers. A need has the bytes of both names."""
    bytes_of_new = _bytes(job.name for job in new)
    for edge in downstream:  # its job needs each of the new jobs
        yield edge.job, len(new), bytes_of_new + len(new) * _bytes([edge.job])
    run_id = _bytes([run.key.run_id])
    ids = (run.cause.command_id, run.cause.correlation_id, *run.cause.trace)
    of_each = _ROWS_OF_JOB * run_id + 2 * _bytes([group or ""]) + _bytes(each or "" for each in ids)
    bytes_of_members = cache(lambda group: _bytes(members[group]))
    for job in new:
        own = _bytes([job.name])
        needs, needed = len(job.needed_jobs), _bytes(name for name, _ in job.needed_jobs)
        resolved = [name for name, _ in job.needed_groups if name in members]
        for name in resolved:  # a need of each of its jobs
            needs += len(members[name])
            needed += bytes_of_members(name)
        size = of_each + _ROWS_OF_JOB * own + needed + needs * own
        still_open = [name for name, _ in job.needed_groups if name not in members]
        for name in still_open:  # a row and an entry of an index, each with all three names
            size += 2 * (run_id + own + _bytes([name]))
        yield job.name, needs + len(still_open), size


def _bytes(names: Iterable[str]) -> int:
    return len("".join(names).encode())
