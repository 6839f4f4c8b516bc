"""Reads and writes of effects and of the messages that become their results."""

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.turns import Turns
from timer_service.core.values.message import Position
from timer_service.core.values.paging import read_cursor, refused_cursor
from timer_service.workflows.effect import Effect, EffectKey, Effects, Inbox, Message
from timer_service.workflows.protocol import EffectKind, EffectStatus
from timer_service.workflows.workflow import Key

_KEY = ("tenant_id", "workflow_id", "name", "n")
_SHORT = ("kind", "status", "seq", "failures", "due_at", "counted_from", "size", "digest")
"""The columns without the key and the texts, in the order of the fields of `Effect`."""
_READ_SHORT = itemgetter(*_SHORT)
_COLUMNS = (*_KEY, *_SHORT, "error")

_SQL = {
    name: text.replace("{columns}", ", ".join(_COLUMNS))
    .replace("{short}", ", ".join((*_KEY, *_SHORT)))
    .replace("{values}", ", ".join(f":{column}" for column in _COLUMNS))
    .replace("{updates}", ", ".join(f"{column} = excluded.{column}" for column in _SHORT))
    for name, text in load_sql("timer_service.workflows", "effect_store.sql").items()
}

BYTES_PER_EFFECT = 200
"""About how many bytes the view of an effect has in addition to its name and its texts."""
_BYTES_PER_TURN = 64 * 1024
LAST_SEQ = 2**31 - 1
"""Later than every number. In a cursor it stands for the effects without a number."""


class Cursor(NamedTuple):
    """Where a page of effects ended. Effects without a number follow those with one, in the order of their keys."""

    seq: int = 0
    name: str = ""
    n: int = -1


def parse_cursor(text: str | None) -> Cursor:
    """Return the cursor of a request; None: the beginning. Raises `Rejection` if it is not from a reply."""
    if text is None:
        return Cursor()
    cursor = Cursor(*read_cursor(text, int, str, int))
    if not (0 <= cursor.seq <= LAST_SEQ and -1 <= cursor.n <= LAST_SEQ):
        raise refused_cursor()
    return cursor


class StoredMessage(NamedTuple):
    """A message to store, with its data."""

    key: Key
    message: Message
    message_id: str | None
    data: str | None


async def find_unseen(reader: Reader, keys: Collection[Key]) -> dict[Key, dict[EffectKey, Effect]]:
    """Return the effects of workflows that their functions have not got, without their texts."""
    return await _group(await reader.fetch_each(_SQL["find_unseen"], [key._asdict() for key in sorted(keys)]))


async def find_some(reader: Reader, wanted: Collection[tuple[Key, EffectKey]]) -> dict[Key, dict[EffectKey, Effect]]:
    """Return the effects that exist among `wanted`, without their texts."""
    return await _group(await reader.fetch_each(_SQL["find"], [_parts(*each) for each in sorted(wanted)]))


async def find_last(reader: Reader, wanted: Mapping[Key, int]) -> dict[Key, Effect]:
    """Return the effects of workflows with these numbers, without their texts."""
    each = [{**key._asdict(), "seq": seq} for key, seq in sorted(wanted.items())]
    rows = await reader.fetch_each(_SQL["find_seen"], each)
    return {_key(row): read_effect(row) for row in rows}


async def find_all(reader: Reader, keys: Collection[Key]) -> dict[Key, list[Effect]]:
    """Return all effects of workflows with their results, in the order of a task."""
    rows = await reader.fetch_each(_SQL["find_all"], [key._asdict() for key in sorted(keys)])
    found: dict[Key, list[Effect]] = {}
    for row in rows:
        found.setdefault(_key(row), []).append(read_effect(row, row["error"], row["result"]))
    return {key: sorted(effects, key=cursor_of) for key, effects in found.items()}


async def page(reader: Reader, key: Key, after: Cursor, limit: int) -> list[Effect]:
    """Return the next effects of a workflow after a cursor with their texts: those with a number, then the others."""
    parameters = {**key._asdict(), "limit": limit}
    rows: list[Row] = []
    if after.seq < LAST_SEQ:
        rows += await reader.fetch(_SQL["page_seen"], {**parameters, "seq": after.seq})
    if len(rows) < limit:
        rest = {**parameters, "name": after.name, "n": after.n, "limit": limit - len(rows)}
        rows += await reader.fetch(_SQL["page_unseen"], rest)
    return [read_effect(row, row["error"], row["result"]) for row in rows]


def view_bytes(effect: Effect) -> int:
    """Return how many bytes the view of an effect has at most."""
    return BYTES_PER_EFFECT + 2 * len(effect.key.name.encode()) + effect.size


def cursor_of(effect: Effect) -> Cursor:
    """Return the cursor after an effect."""
    return Cursor(LAST_SEQ, *effect.key) if effect.seq is None else Cursor(effect.seq)


async def find_results(reader: Reader, wanted: Collection[tuple[Key, EffectKey]]) -> dict[tuple[Key, EffectKey], str]:
    """Return the results of effects, without those that are null."""
    rows = await reader.fetch_each(_SQL["find_result"], [_parts(*each) for each in sorted(wanted)])
    return {(_key(row), _effect_key(row)): row["result"] for row in rows if row["result"] is not None}


async def save(tx: Transaction, before: Mapping[Key, Effects], after: Mapping[Key, Effects], now: int) -> None:
    """Write the effects of `after` that differ from `before`, and mark the messages that they take."""
    changed = [
        (key, effect)
        for key in sorted(after)
        for effect in after[key].values()
        if effect != before[key].get(effect.key)
    ]
    await tx.executemany(_SQL["write"], [_parameters(*each) for each in changed])
    taken = [(key, effect, effect.taken) for key, effect in changed if effect.taken is not None]
    await tx.executemany(_SQL["copy_message"], [{**_parts(key, each.key), **_place(m)} for key, each, m in taken])
    await tx.executemany(_SQL["take_message"], [{**key._asdict(), **_place(m), "now": now} for key, _, m in taken])


async def find_awaited(reader: Reader, wanted: Collection[tuple[Key, str]]) -> set[tuple[Key, str]]:
    """Return for which of these messages (workflow, name) a workflow waits."""
    rows = await reader.fetch_each(
        _SQL["is_awaited"], [{**key._asdict(), "name": name} for key, name in sorted(wanted)]
    )
    return {(_key(row), row["name"]) for row in rows}


async def find_waits(reader: Reader, keys: Collection[Key], limit: int) -> dict[Key, list[str]]:
    """Return the names of the first messages for which workflows wait."""
    found: dict[Key, list[str]] = {}
    for row in await reader.fetch_each(_SQL["find_waits"], [{**key._asdict(), "limit": limit} for key in keys]):
        found.setdefault(_key(row), []).append(row["name"])
    return found


async def find_message_ids(reader: Reader, wanted: Collection[tuple[Key, str]]) -> set[tuple[Key, str]]:
    """Return which of these message ids (workflow, id) are stored."""
    each = [{**key._asdict(), "message_id": name} for key, name in sorted(wanted)]
    rows = await reader.fetch_each(_SQL["find_message_id"], each)
    return {(_key(row), row["message_id"]) for row in rows}


async def next_messages(reader: Reader, wanted: Mapping[tuple[Key, str], int]) -> dict[Key, Inbox]:
    """Return the next messages of workflows: for each (workflow, name) up to a number."""
    each = [{**key._asdict(), "name": name, "limit": limit} for (key, name), limit in sorted(wanted.items())]
    found: dict[Key, dict[str, tuple[Message, ...]]] = {}
    for row in await reader.fetch_each(_SQL["next_messages"], each):
        inbox = found.setdefault(_key(row), {})
        position = Position(row["position_epoch"], row["position_sequence"])
        message = Message(row["name"], position, row["sent_at"], row["size"])
        inbox[message.name] = (*inbox.get(message.name, ()), message)
    return {key: inbox for key, inbox in found.items()}  # noqa: C416 - another type of value


async def insert_messages(tx: Transaction, messages: Sequence[StoredMessage]) -> None:
    """Store messages. The rows of their workflows are locked or new."""
    each = [
        {**key._asdict(), **_place(each), "size": each.size, "sent_at": each.sent_at, "message_id": name, "data": data}
        for key, each, name, data in messages
    ]
    await tx.executemany(_SQL["insert_message"], each)


def read_effect(row: Row, error: str | None = None, result: str | None = None) -> Effect:
    """Return the effect in a row, with these texts."""
    kind, status, seq, failures, due_at, counted_from, size, digest = _READ_SHORT(row)
    short = EffectKind(kind), EffectStatus(status), seq, failures, due_at, counted_from, size, digest
    return Effect(_effect_key(row), *short, error, result)


async def _group(rows: Sequence[Row]) -> dict[Key, dict[EffectKey, Effect]]:
    """Return the effects in rows by workflow. Other tasks run in between: there may be 10,000."""
    found: dict[Key, dict[EffectKey, Effect]] = {}
    turns = Turns(_BYTES_PER_TURN)
    for row in rows:
        await turns.take(BYTES_PER_EFFECT)
        effect = read_effect(row)
        found.setdefault(_key(row), {})[effect.key] = effect
    return found


def _key(row: Row) -> Key:
    return Key(row["tenant_id"], row["workflow_id"])


def _effect_key(row: Row) -> EffectKey:
    return EffectKey(row["name"], row["n"])


def _place(message: Message) -> Mapping[str, Any]:
    """Return the key of a message in its workflow."""
    epoch, sequence = message.position
    return {"name": message.name, "position_epoch": epoch, "position_sequence": sequence}


def _parts(key: Key, effect: EffectKey) -> Mapping[str, Any]:
    """Return the columns of the key of an effect."""
    return {**key._asdict(), **effect._asdict()}


def _parameters(key: Key, effect: Effect) -> Mapping[str, Any]:
    """Return the values of an effect to write. Texts that were not loaded are None: the stored ones stay."""
    values = {name: getattr(effect, name) for name in _SHORT}
    return {**_parts(key, effect.key), **values, "error": effect.error, "result": effect.result}
