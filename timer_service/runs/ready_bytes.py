"""The bytes of the JobReady that the commands of a transaction add: payloads and outputs can make them large."""

from collections.abc import Collection, Mapping
from itertools import chain

from timer_service.core.database import Transaction
from timer_service.core.sql import load_sql
from timer_service.runs import events, store
from timer_service.runs.draft import RunState
from timer_service.runs.edges import read_needs
from timer_service.runs.rules import RunKey
from timer_service.runs.store import JobKey

MOST_BYTES = 16 * 1024 * 1024
"""From so many bytes on, a transaction applies no further commands. A single run can have three times as many."""
_MOST_READ = 1000
"""Of how many ready jobs the needs are read at a time. Together they have at most 100,000 of each run."""

_SQL = load_sql("timer_service.runs", "events.sql")


class ReadyBytes:
    """Whether the JobReady of a transaction have room for those of further commands.

    A ready job may have outputs of other jobs in its event. It counts with the most that an event may have. If there
    seems to be no room then, it counts with all outputs of its run, and at last with those that it needs: most
    transactions read nothing for this, and others one sum for each run.
    """

    def __init__(self, tx: Transaction, with_outputs: Collection[RunKey]) -> None:
        """`with_outputs` are the runs of which jobs had outputs before the transaction."""
        self._tx = tx
        self._with_outputs = with_outputs
        self._known = 0
        """The bytes of payloads, and of outputs of which it is known which jobs need them."""
        self._assumed = 0
        """The most bytes that the outputs of the other ready jobs can have."""
        self._unread: dict[RunKey, list[str]] = {}
        """These jobs."""
        self._states: dict[RunKey, RunState] = {}
        self._of_runs: Mapping[RunKey, int] | None = None
        """The bytes of all outputs that each run had before the transaction; None if they are not read yet."""

    def count(self, before: RunState, after: RunState) -> None:
        """Count what has become ready between two states of a run."""
        key = after.run.key
        self._states[key] = after
        ready = list(events.ready_jobs(before, after))
        self._known += sum(job.payload_bytes for job in ready)
        if after.run.has_outputs and ready:
            self._unread.setdefault(key, []).extend(job.name for job in ready)
            self._assumed += len(ready) * self._most_of_job(key)

    async def is_full(self) -> bool:
        """Return whether no further commands should be applied."""
        if self._has_room():
            return False
        if self._of_runs is None and self._unread:
            self._of_runs = await self._read_of_runs()
            self._assumed = sum(len(names) * self._most_of_job(key) for key, names in self._unread.items())
        if self._has_room() or sum(map(len, self._unread.values())) > _MOST_READ:
            return not self._has_room()
        self._known += await self._read_needed()
        self._assumed, self._unread = 0, {}
        return not self._has_room()

    def _has_room(self) -> bool:
        return self._known + self._assumed < MOST_BYTES

    def _most_of_job(self, key: RunKey) -> int:
        """Return the most bytes that the outputs in one JobReady of a run can have, as far as that is known."""
        if self._of_runs is None:
            return events.OUTPUTS_BYTES
        of_run = self._of_runs.get(key, 0) + sum(_new_outputs(self._states[key]).values())
        return min(of_run, events.OUTPUTS_BYTES)

    async def _read_of_runs(self) -> Mapping[RunKey, int]:
        rows = await self._tx.fetch_each(_SQL["outputs_of_run"], [key._asdict() for key in self._with_outputs])
        return {store.run_key(row): row["size"] for row in rows}

    async def _read_needed(self) -> int:
        """Return the bytes of the outputs that the ready jobs need. Some needs and outputs are not written yet."""
        needs: dict[JobKey, set[str]] = {(key, name): set() for key, names in self._unread.items() for name in names}
        for row in await self._tx.fetch_each(_SQL["needs"], [store.job_parameters(each) for each in needs]):
            needs[store.run_key(row), row["job_name"]].update(name for name, _ in read_needs(row["needs"]))
        for key in self._unread:
            for edge in chain.from_iterable(self._states[key].downstream.values()):
                if (key, edge.job) in needs:
                    needs[key, edge.job].add(edge.upstream)
        upstream = sorted({(key, name) for (key, _), names in needs.items() for name in names})
        rows = await self._tx.fetch_each(_SQL["outputs_size"], [store.job_parameters(each) for each in upstream])
        sizes: dict[JobKey, int] = {(store.run_key(row), row["job_name"]): row["outputs_bytes"] for row in rows}
        for key in self._unread:
            sizes |= {(key, name): size for name, size in _new_outputs(self._states[key]).items()}
        of_jobs = (sum(sizes.get((key, name), 0) for name in names) for (key, _), names in needs.items())
        return sum(min(size, events.OUTPUTS_BYTES) for size in of_jobs)


def _new_outputs(state: RunState) -> Mapping[str, int]:
    """Return the bytes of the outputs that the transaction adds to a run, by job."""
    sizes = ((name, store.outputs_bytes(job)) for name, job in state.jobs.items())
    return {name: size for name, size in sizes if size is not None}
