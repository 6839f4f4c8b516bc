"""Records which workers were seen last, for list-workers. A row is written at most every 10 s.

Anyone may invent workers, so a tenant has a limited number of rows, and a row a limited size.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

from pydantic_core import to_json

from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.workflows.protocol import PollTasks

_SQL = load_sql("timer_service.workflows.tasks", "registry.sql")

LOOP = "workflow-workers"
_SECONDS = 10
"""How often the row of a worker is written at most."""
_BATCH = 1000
MOST_WORKERS = 1000
"""How many workers of a tenant are stored: those that were seen last."""
_FORGOTTEN = 2 * _BATCH
"""How many rows of a tenant are deleted at a time. Fewer than that are added."""
_TYPES_BYTES = 12 * 1024
"""The most bytes of the types of a worker. Types beyond are not stored. 100 types of 100 ASCII characters fit."""
_ROW_BYTES = 1024
"""The bytes of a row that waits to be written, at least."""
_PENDING_BYTES = _BATCH * _ROW_BYTES
"""The most bytes of the rows of a tenant that wait to be written. Workers beyond are recorded at a later poll."""
_PAUSE_MS = 1000
_MOST_KNOWN = 20_000
"""How many workers are remembered. Those beyond are written more often, but at most `_BATCH` in a second."""

_Key = tuple[str, str]


class _Shown(NamedTuple):
    """The columns that a poll shows."""

    name: str | None
    queue: str
    types: str
    slots: int


class _Seen(NamedTuple):
    """A request of a worker whose row waits to be written."""

    at: int
    shown: _Shown | None
    """None: the worker sent another request than a poll."""

    @property
    def size(self) -> int:
        """The bytes with which it counts."""
        return _ROW_BYTES if self.shown is None else max(_ROW_BYTES, len(self.shown.types.encode()))


class WorkerRegistry:
    """A worker of the service that writes what the requests of the users' workers show."""

    def __init__(self, parts: Parts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = parts.database
        self._clock = parts.clock
        self._wake = parts.wake
        self._monotonic = monotonic
        self._written: OrderedDict[_Key, float] = OrderedDict()
        """When the row of a worker was written last, the longest ago first."""
        self._pending: OrderedDict[_Key, _Seen] = OrderedDict()
        self._pending_bytes: Counter[str] = Counter()
        """How many bytes of them each tenant has. A tenant with ever new workers must not delay the others."""

    def record(self, tenant: str, worker_id: str, poll: PollTasks | None = None) -> None:
        """Record a request of a worker, perhaps its poll, unless its row was just written or there are too many."""
        key = tenant, worker_id
        written = self._written.get(key)
        recent = written is not None and self._monotonic() - written < _SECONDS
        if recent or key in self._pending or self._pending_bytes[tenant] >= _PENDING_BYTES:
            return
        now = self._clock.now()
        if not self._pending:
            self._wake(LOOP, now + _PAUSE_MS)
        seen = self._pending[key] = _Seen(now, None if poll is None else _shown(poll))
        self._pending_bytes[tenant] += seen.size

    async def tick(self, now: int) -> Pass:
        """Write the rows of up to 1,000 workers that were seen, and delete those of tenants with too many."""
        batch = [self._pending.popitem(last=False) for _ in range(min(_BATCH, len(self._pending)))]
        for key, seen in batch:
            self._pending_bytes[key[0]] -= seen.size
        self._pending_bytes = +self._pending_bytes  # drops the tenants that have none left
        if batch:
            await in_transaction(self._database, lambda tx: _write(tx, batch))
            self._remember([key for key, _ in batch])
        return Pass(len(batch), now + _PAUSE_MS if self._pending else None)

    def _remember(self, keys: list[_Key]) -> None:
        """Record when the rows of workers were written. If these are too many, forget the oldest."""
        for key in keys:
            self._written[key] = self._monotonic()
            self._written.move_to_end(key)
        while len(self._written) > _MOST_KNOWN:
            self._written.popitem(last=False)


async def _write(tx: Transaction, batch: Sequence[tuple[_Key, _Seen]]) -> None:
    """Write the rows of polls, and of other requests if they are known. Delete those of tenants with too many."""
    rows = sorted(batch, key=itemgetter(0))
    await tx.insert(
        _SQL["poll"], [(*key, *seen.shown, seen.at, seen.at) for key, seen in rows if seen.shown is not None]
    )
    known = [(key, seen.at) for key, seen in rows if seen.shown is None]
    await tx.executemany(_SQL["seen"], [{"tenant_id": key[0], "worker_id": key[1], "now": at} for key, at in known])
    limits = {"most": MOST_WORKERS, "limit": _FORGOTTEN}
    tenants = sorted({key[0] for key, seen in batch if seen.shown is not None})
    await tx.executemany(_SQL["forget"], [{"tenant_id": each, **limits} for each in tenants])


def _shown(poll: PollTasks) -> _Shown:
    """Return the columns that a poll shows."""
    types, room = [], _TYPES_BYTES
    for each in poll.types:
        room -= len(to_json(each)) + 1
        if room < 0:
            break
        types.append(each)
    return _Shown(poll.name, poll.queue, to_json(types).decode(), poll.slots)
