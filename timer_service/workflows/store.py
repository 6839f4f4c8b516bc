"""Reads and writes of workflows: rows of `workflows` and `workflow_data` to `Workflow` values and back."""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.isolate import Retry
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.events.cause import cause_columns, read_cause
from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.workflow_start import MOST_WITH_KEY, Concurrency, read_concurrency
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Position
from timer_service.workflows.keys import KeyName, KeyUse, Queued
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.workflow import BLOCKED_FROM, Definition, Hold, Key, Texts, Workflow

_KEY = ("tenant_id", "workflow_id")
_HOLD = ("lease_token", "worker_id", "claimed_at", "lease_ms", "report_number")
_ADVANCES = (
    *("status", "due_at", "available_at", "counted_from", *_HOLD, "attempt", "renewed", "last_error"),
    *("effects", "effect_bytes", "seen", "messages", "message_bytes", "blocks", "times_blocked", "settled_by"),
)
"""The columns that a worker's request can change if the workflow goes on."""
_FINISHES = (*_ADVANCES, "failure_code", "failed_step", "ended_at", "key_place", "key_due_at")
_CONCURRENCY = ("concurrency_key", "concurrency_limit", "when_busy")
_OTHERS = (
    *("type", "queue", "deadline_at", "overdue_at", "retry", *_CONCURRENCY, "digest", "input_bytes"),
    *("retries", "reason", "created_at", "is_deleting"),
    *("correlation_id", "causation_id", "traceparent", "tracestate"),
    *("started_epoch", "started_sequence", "cancelled_epoch", "cancelled_sequence"),
)
COLUMNS = (*_KEY, *_FINISHES, *_OTHERS)

_NO_HOLD: Mapping[str, Any] = dict.fromkeys(_HOLD)
_DEFINITION = ("type", "queue", "digest", "deadline_at", "retry")
_NO_DEFINITION: Mapping[str, Any] = dict.fromkeys(_DEFINITION)
_NO_CONCURRENCY: Mapping[str, Any] = dict.fromkeys(_CONCURRENCY)
_SAME = tuple(name for name in COLUMNS if name in Workflow._fields)
"""The columns with the names of fields."""
_PLAIN = tuple(name for name in _SAME if name not in {"status", "is_deleting"})
"""Those whose values are the same, too."""
_READ_PLAIN, _READ_HOLD, _READ_DEFINITION = itemgetter(*_PLAIN), itemgetter(*_HOLD), itemgetter(*_DEFINITION)
_READ_CONCURRENCY = itemgetter(*_CONCURRENCY)
_WRITE_SAME = attrgetter(*_SAME)

_SQL = load_sql("timer_service.workflows", "store.sql")


def _assign(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} = :{name}" for name in columns)


_SQL["insert"] = _SQL["insert"].format(columns=", ".join(COLUMNS), values=", ".join(f":{name}" for name in COLUMNS))
_SQL["update"] = _SQL["update"].format(updates=_assign((*_FINISHES, *_OTHERS)))
_SQL["advance"] = _SQL["advance"].format(advances=_assign(_ADVANCES))
_SQL["finish"] = _SQL["finish"].format(finishes=_assign(_FINISHES))
_SQL["find"] = _SQL["find"].replace("{columns}", ", ".join(COLUMNS))  # not `*`: older instances prepare it, too
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"
_FIND_IF_FREE = f"{_SQL['find']}\n/* skip locked */"

OVERDUE = DueTable("workflows", _KEY, ("overdue_at",), COLUMNS, where="overdue_at IS NOT NULL AND ended_at IS NULL")
"""The open workflows with a deadline."""

KEYS = DueTable("workflows", _KEY, ("key_due_at",), COLUMNS, where="key_due_at IS NOT NULL")
"""The workflows because of which to look at a concurrency key."""

COUNTED = (
    CountedRows("workflows", "active", "available_at IS NOT NULL"),
    CountedRows("workflows", WorkflowStatus.QUEUED, "key_place IS NOT NULL"),
    CountedRows("workflows", WorkflowStatus.FAILED, "status = 'failed'"),
    CountedRows("workflows", "blocked", f"blocks >= {BLOCKED_FROM} AND ended_at IS NULL"),
)
"""The workflows that the gauges count."""

_LARGE = 1000
"""A workflow counts with its data if it has more bytes of it."""
_FEW = 10
"""Each further effect counts too, also without a result: no stream limits how many effects workers report."""
_BYTES_PER_EFFECT = 1000
"""About what a row of an effect and its indexes take, with a long name."""

OPEN = Usage("open_workflows", _SQL["count_open"])
STORED = Usage("workflow_data", _SQL["sum_stored"], grows_alone=True)
"""Workers add results to it, which are not refused."""
USAGES = (OPEN, STORED)
"""What a tenant may have of workflows."""


def growth(before: Workflow | None, after: Workflow) -> Amounts:
    """Return how much more a tenant has after a command on one of its workflows than before.

    A workflow that opens counts with a byte at least: it may have results, so it needs some room for them.
    """
    was_open, stored_before = (False, 0) if before is None else (before.is_open, _stored(before))
    opened, stored = int(after.is_open) - int(was_open), _stored(after) - stored_before
    return {OPEN: opened, STORED: max(stored, 1) if opened > 0 else stored}


def _stored(workflow: Workflow) -> int:
    """Return the bytes with which a workflow counts. It must equal the statement `sum_stored`."""
    data = workflow.input_bytes + workflow.effect_bytes + workflow.message_bytes
    further = max(workflow.effects - _FEW, 0)
    return data + further * _BYTES_PER_EFFECT if data > _LARGE or further else 0


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Workflow]:
    """Return the workflows that exist among `keys`, also those that are not started."""
    return by_key(await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys]))


async def load(tx: Transaction, keys: Collection[Key]) -> dict[Key, Workflow]:
    """Like `find`, but lock the rows, in the order of their keys, until the transaction ends."""
    return by_key(await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)]))


async def find_texts(reader: Reader, keys: Collection[Key]) -> dict[Key, Texts]:
    """Return the texts of workflows that have any."""
    rows = await reader.fetch_each(_SQL["find_data"], [key._asdict() for key in sorted(keys)])
    return {key_of(row): Texts(row["input"], row["result"], row["error"]) for row in rows}


async def lock_some(tx: Transaction, keys: Collection[Key]) -> dict[Key, Workflow]:
    """Like `load`, but leave out the workflows that another transaction has locked."""
    return by_key(await tx.fetch_each(_FIND_IF_FREE, [key._asdict() for key in sorted(keys)]))


async def lock_keys(tx: Transaction, names: Collection[KeyName], *, wait: bool = True) -> list[KeyName]:
    """Lock concurrency keys until the transaction ends, so that no other one decides about them. Return them in order.

    Without `wait`, those that another transaction has are left out. What is read afterwards is what the others left.
    """
    by_text = {f"workflow key {name.tenant_id}/{name.concurrency_key}": name for name in sorted(names)}
    locked = await tx.lock(list(by_text), wait=wait)
    return [by_text[each] for each in locked]


async def lock_uses(tx: Transaction, names: Collection[KeyName], *, changes: int) -> dict[KeyName, KeyUse]:
    """Lock concurrency keys, and return how they are used. `changes`: how many workflows the transaction may change."""
    return await find_uses(tx, await lock_keys(tx, names), MOST_WITH_KEY + changes)


async def find_uses(reader: Reader, names: Collection[KeyName], most: int = MOST_WITH_KEY) -> dict[KeyName, KeyUse]:
    """Return how concurrency keys are used, each counted up to `most`."""
    in_order = sorted(names)
    each = [{**name._asdict(), "most": most, "number": number} for number, name in enumerate(in_order)]
    rows = await reader.fetch_each(_SQL["find_use"], each)
    return {in_order[row["number"]]: KeyUse(row["started"], row["queued"], row["last_place"] or 0) for row in rows}


async def find_queued(reader: Reader, names: Collection[KeyName], limit: int) -> dict[KeyName, list[Queued]]:
    """Return the first workflows that wait for concurrency keys, in order."""
    found: dict[KeyName, list[Queued]] = {}
    for row in await reader.fetch_each(_SQL["first_queued"], [{**name._asdict(), "limit": limit} for name in names]):
        queued = Queued(key_of(row), Concurrency(*_READ_CONCURRENCY(row)))
        found.setdefault(KeyName(row["tenant_id"], row["concurrency_key"]), []).append(queued)
    return found


async def find_oldest(reader: Reader, names: Collection[KeyName], limit: int) -> dict[KeyName, list[Key]]:
    """Return the oldest workflows that have concurrency keys."""
    found: dict[KeyName, list[Key]] = {}
    for row in await reader.fetch_each(_SQL["oldest_started"], [{**name._asdict(), "limit": limit} for name in names]):
        found.setdefault(KeyName(row["tenant_id"], row["concurrency_key"]), []).append(key_of(row))
    return found


async def looked_at_keys(tx: Transaction, keys: Collection[Key]) -> None:
    """Record that the concurrency keys of locked workflows were looked at."""
    await tx.executemany(_SQL["looked_at_key"], [key._asdict() for key in sorted(keys)])


async def save(tx: Transaction, before: Mapping[Key, Workflow], after: Mapping[Key, Workflow]) -> None:
    """Write the workflows of `after` that differ from `before`. `load` locked the rows of `before`.

    Raises `ConflictError`, which is retried, if another instance has inserted one of the workflows since `load`.
    """
    changed = [after[key] for key in sorted(after) if after[key] != before.get(key)]
    await tx.executemany(_SQL["update"], [_parameters(each) for each in changed if each.key in before])
    new = [_parameters(each) for each in changed if each.key not in before]
    if await tx.executemany(_SQL["insert"], new) < len(new):
        raise ConflictError("another instance inserted some of the same workflows")
    await _save_texts(tx, before, changed)


async def advance(tx: Transaction, before: Mapping[Key, Workflow], after: Mapping[Key, Workflow]) -> None:
    """Write what workers' requests and deadlines have changed. The rows are locked."""
    changed = [after[key] for key in sorted(after) if after[key] != before[key]]
    await tx.executemany(_SQL["advance"], [_parameters(each) for each in changed if each.is_open])
    await tx.executemany(_SQL["finish"], [_parameters(each) for each in changed if not each.is_open])
    await _save_texts(tx, before, changed)


async def _save_texts(tx: Transaction, before: Mapping[Key, Workflow], changed: Sequence[Workflow]) -> None:
    """Write the texts that are set, and remove the errors of failed workflows that continue."""
    wanted = [each for each in changed if each.texts != Texts() or _is_reopened(before.get(each.key), each)]
    await tx.executemany(_SQL["write_data"], [{**each.key._asdict(), **each.texts._asdict()} for each in wanted])


def _is_reopened(before: Workflow | None, after: Workflow) -> bool:
    """Return whether a failed workflow continues, so that its stored error goes."""
    return before is not None and before.failure_code is not None and after.failure_code is None


async def postpone(tx: Transaction, key: Key, retry: Retry, now: int) -> None:
    """Let a workflow wait that could not be sent to a worker, with the reason, if it is still available."""
    await tx.execute(_SQL["postpone"], {**key._asdict(), "until": retry.at, "error": retry.error, "now": now})


def by_key(rows: Sequence[Row]) -> dict[Key, Workflow]:
    """Return the workflows in rows by their keys."""
    return {workflow.key: workflow for workflow in map(read_workflow, rows)}


def key_of(row: Row) -> Key:
    """Return the key of a workflow."""
    return Key(row["tenant_id"], row["workflow_id"])


def read_workflow(row: Row) -> Workflow:
    """Return the workflow in a row of `workflows`."""
    return Workflow(
        key=key_of(row),
        definition=None
        if row["type"] is None
        else Definition._make((*_READ_DEFINITION(row), read_concurrency(_READ_CONCURRENCY(row)))),
        cause=read_cause(row),
        started_by=Position(row["started_epoch"], row["started_sequence"]),
        cancelled_by=Position(row["cancelled_epoch"], row["cancelled_sequence"]),
        status=WorkflowStatus(row["status"]),
        hold=None if row["lease_token"] is None else Hold(*_READ_HOLD(row)),
        is_deleting=bool(row["is_deleting"]),
        **dict(zip(_PLAIN, _READ_PLAIN(row), strict=True)),
    )


def _parameters(workflow: Workflow) -> Mapping[str, Any]:
    """Return the values of all columns of a workflow."""
    hold, definition = workflow.hold, workflow.definition
    concurrency = None if definition is None else definition.concurrency
    return {
        "tenant_id": workflow.key.tenant_id,
        "workflow_id": workflow.key.workflow_id,
        **dict(zip(_SAME, _WRITE_SAME(workflow), strict=True)),
        **(_NO_HOLD if hold is None else dict(zip(_HOLD, hold, strict=True))),
        **(_NO_DEFINITION if definition is None else dict(zip(_DEFINITION, definition[:-1], strict=True))),
        **(_NO_CONCURRENCY if concurrency is None else dict(zip(_CONCURRENCY, concurrency, strict=True))),
        "overdue_at": None if definition is None else definition.deadline_at,
        **cause_columns(workflow.cause),
        "started_epoch": workflow.started_by.epoch,
        "started_sequence": workflow.started_by.sequence,
        "cancelled_epoch": workflow.cancelled_by.epoch,
        "cancelled_sequence": workflow.cancelled_by.sequence,
    }
