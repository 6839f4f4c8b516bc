"""The outbox: the table of events to publish, written together with the rows that caused them.

A relay over `OUTBOX` publishes each event at least once, always under the same id, and then deletes its row. A row that
cannot be published stays in state Buried, with the reason, until it is requeued.

Dead letters have a table and a relay of their own: an event does not wait while their stream is full or missing.
"""

import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.long_texts import LONGEST_IN_ROW, LongTexts, TextKey
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.codec import encode
from timer_service.core.values.message import Event, Message

_TEXTS = LongTexts("outbox", "body", "large_body", "event_id")
_SQL = load_sql("timer_service.core.events", "outbox.sql")
_SQL["buried_page"] = _SQL["buried_page"].format(body=_TEXTS.expression)
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"

WAITING = "Waiting"
"""The state of an event that will be published."""

OUTBOX = LeasedTable(
    name="outbox",
    key=("tenant_id", "event_id"),
    claimed=(
        *("tenant_id", "event_id", "message", "topic", "body", "large_body", "traceparent", "tracestate"),
        *("added_at", "ordinal"),
    ),
    oldest_first="added_at",
    ordinal="ordinal",
    due_at_once="TRUE",
    texts=_TEXTS,
    buried="Buried",
)

DEAD_LETTERS = replace(
    OUTBOX,
    name="dead_letters",
    key=("tenant_id", "letter_id"),
    claimed=("tenant_id", "letter_id", "message", "body", "large_body", "headers", "added_at", "ordinal"),
    texts=LongTexts("dead_letters", "body", "large_body", "letter_id"),
)


COUNTED = (
    CountedRows(OUTBOX.name, WAITING, "available_at IS NOT NULL"),
    CountedRows(OUTBOX.name, OUTBOX.buried, "state = 'Buried'"),
    CountedRows(DEAD_LETTERS.name, WAITING, "available_at IS NOT NULL"),
)
"""The rows that the gauges count."""

_KEY = itemgetter(0, 1)
_ORDINALS = itertools.count()
"""One counter for the process. With one per transaction, every function that adds events would have to pass it on."""


class EventKey(NamedTuple):
    """The key of an event in the outbox."""

    tenant_id: str
    event_id: str


async def add(tx: Transaction, events: Collection[Event], now: int) -> None:
    """Write events, which the relay publishes after the commit. An event whose id is in the outbox is not changed.

    The relay publishes events in the order in which this instance added them, as far as docs/guarantees.md promises.
    The caller should wake the relay's loop; otherwise the relay finds the events at its next poll.
    """
    await add_messages(tx, map(encode, events), now)


async def add_messages(tx: Transaction, messages: Iterable[Message], now: int) -> None:
    """Write encoded events, as `add`."""
    rows, texts = [], _Texts()
    for message in messages:
        tenant, headers = message.address.tenant, message.headers
        body = texts.place((tenant, message.id), message.body.decode())
        values = (*message.address[2:], *body, headers.get("traceparent"), headers.get("tracestate"))
        rows.append((tenant, message.id, *values, now, next(_ORDINALS), now))
    inserted = await tx.insert(_SQL["add"], sorted(rows, key=_KEY))  # in the order in which transactions lock rows
    await texts.add(tx, OUTBOX, inserted)


async def add_dead_letters(tx: Transaction, letters: Collection[Message], now: int) -> None:
    """Write dead letters, which their relay publishes like events."""
    rows, texts = [], _Texts()
    for letter in letters:
        tenant = letter.address.tenant
        body = texts.place((tenant, letter.id), b64encode(letter.body).decode())
        values = (letter.address.message, *body, json.dumps(letter.headers))
        rows.append((tenant, letter.id, *values, now, next(_ORDINALS), now))
    inserted = await tx.insert(_SQL["add_dead_letter"], sorted(rows, key=_KEY))
    await texts.add(tx, DEAD_LETTERS, inserted)


class _Texts(dict[TextKey, str]):
    """The long texts of rows that are to be added."""

    def place(self, key: TextKey, text: str) -> tuple[str | None, int | None]:
        """Return the values of the columns `body` and `large_body`. Keep a text for which the row has no room."""
        if len(text) <= LONGEST_IN_ROW:
            return text, None
        self[key] = text
        return None, len(text)

    async def add(self, tx: Transaction, table: LeasedTable, inserted: Iterable[Sequence[Any]]) -> None:
        """Write the texts of the rows that were inserted. The others are there already, with their texts."""
        if self and table.texts:
            keys = {(row[0], row[1]) for row in inserted}
            await table.texts.add(tx, {key: text for key, text in self.items() if key in keys})


async def find_waiting(reader: Reader, since: Mapping[str, int]) -> set[str]:
    """Return the tenants of which an event still waits that was available at an instant. `since`: their instants."""
    each = [{"tenant_id": tenant, "at": at} for tenant, at in sorted(since.items())]
    return {row["tenant_id"] for row in await reader.fetch_each(_SQL["find_waiting"], each)}


async def lock_states(tx: Transaction, keys: Collection[EventKey]) -> dict[EventKey, str]:
    """Lock the events that exist until the transaction ends, and return their states."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {EventKey(row["tenant_id"], row["event_id"]): row["state"] for row in rows}


async def requeue(tx: Transaction, keys: Collection[EventKey], now: int) -> None:
    """Return buried events to state Waiting, with no attempts counted. The caller has locked them."""
    await tx.executemany(_SQL["requeue"], [{**key._asdict(), "now": now} for key in sorted(keys)])


async def read_buried_page(reader: Reader, tenant_id: str, after: Sequence[str | int], limit: int) -> Sequence[Row]:
    """Return up to `limit` buried events after a cursor, oldest first. A cursor is (added_at, event id)."""
    added_at, event_id = after
    parameters = {"tenant_id": tenant_id, "added_at": added_at, "event_id": event_id, "limit": limit}
    return await reader.fetch(_SQL["buried_page"], parameters)


def stored_message(row: Row, _at: int) -> Message:
    """Return the message of a claimed event. It is the same, byte for byte, each time it is published."""
    trace = {name: row[name] for name in ("traceparent", "tracestate") if row[name] is not None}
    address = Address(Kind.EVENT, row["tenant_id"], row["message"], row["topic"])
    return Message(address, row["event_id"], row["body"].encode(), trace)


def stored_dead_letter(row: Row, _at: int) -> Message:
    """Return the message of a claimed dead letter. It is the same, byte for byte, each time it is published."""
    address = Address(Kind.DEAD_LETTER, row["tenant_id"], row["message"])
    return Message(address, row["letter_id"], b64decode(row["body"]), json.loads(row["headers"]))
