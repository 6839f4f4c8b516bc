"""The rows of waiting commands: commands that were read from the log, and are applied later."""

import re
import struct
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.address import TENANT_PATTERN, UNREADABLE, Address, Kind
from timer_service.core.values.delays import LONGEST
from timer_service.core.values.message import Position
from timer_service.core.values.parts import split
from timer_service.core.values.raw_command import Headers, RawCommand

_SQL = load_sql("timer_service.core.intake", "waiting_rows.sql")

ROW_COMMANDS = 1000
"""The most commands of one row."""
ROW_BYTES = 256 * 1024
"""The most bytes of the commands of one row, without bodies that were left in the log. A single command may have more.
"""
_HELD_BYTES = attrgetter("held_bytes")
_NUMBERS = struct.Struct("<QQQQIIIII")
_LATEST_MS = (LONGEST + timedelta(seconds=5)) // timedelta(milliseconds=1)
"""No command waits longer, also if the clock was read a moment earlier."""


@lru_cache(maxsize=4096)
def waiting_name(tenant: str) -> str:
    """Return the name under which the commands of a tenant wait: its own, or one for all texts that name no tenant."""
    return tenant if re.fullmatch(TENANT_PATTERN, tenant) else UNREADABLE


def may_begin(available_at: int, now: int) -> bool:
    """Return whether commands may be applied now. They may if their wait is too long: then the clock was set back."""
    return not now < available_at <= now + _LATEST_MS


class NewRow(NamedTuple):
    """Commands of one tenant that follow each other, to be stored as one row."""

    tenant: str
    commands: Sequence[RawCommand]
    size: int

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statement that adds the row."""
        first = self.commands[0].position
        return {
            "tenant_id": self.tenant,
            "epoch": first.epoch,
            "first_sequence": first.sequence,
            "number": len(self.commands),
            "size": self.size,
            "commands": b"".join(map(_dump, self.commands)),
        }


def rows_of(commands: Iterable[RawCommand]) -> list[NewRow]:
    """Divide commands of one log into rows. The commands of each tenant stay in their order."""
    of_tenants: dict[str, list[RawCommand]] = {}
    for command in commands:
        of_tenants.setdefault(waiting_name(command.address.tenant), []).append(command)
    return [
        NewRow(tenant, part, sum(map(_HELD_BYTES, part)))
        for tenant, own in of_tenants.items()
        for part in split(own, _HELD_BYTES, max_count=ROW_COMMANDS, max_bytes=ROW_BYTES)
    ]


def _dump(command: RawCommand) -> bytes:
    """Return a command as it is stored: its numbers, the lengths of its parts, and the parts."""
    names = (command.address.tenant, command.address.message, command.source)
    parts = (*map(str.encode, names), command.headers.block, command.body)
    numbers = (command.position.sequence, command.stored_at, command.size, command.left_bytes, *map(len, parts))
    return b"".join((_NUMBERS.pack(*numbers), *parts))


def _load(epoch: int, stored: bytes, skipped: int) -> list[RawCommand]:
    """Return the commands that `_dump` wrote behind each other, without the first `skipped` ones."""
    commands: list[RawCommand] = []
    at = 0
    while at < len(stored):
        sequence, stored_at, size, left, *lengths = _NUMBERS.unpack_from(stored, at)
        # Where the parts begin: tenant, message, source, headers and body. The last one is where the command ends.
        begins = list(accumulate(lengths, initial=at + _NUMBERS.size))
        at = begins[-1]
        if skipped > 0:
            skipped -= 1
            continue
        source, address = _read_names(stored[begins[0] : begins[3]], lengths[0], lengths[1])
        headers, body = Headers(stored[begins[3] : begins[4]]), stored[begins[4] : at]
        commands.append(RawCommand(address, source, body, headers, Position(epoch, sequence), size, stored_at, left))
    return commands


@lru_cache(maxsize=1024)
def _read_names(names: bytes, tenant: int, message: int) -> tuple[str, Address]:
    """Return the source and the address. `names`: tenant, message and source; `tenant`, `message`: their lengths."""
    address = Address(Kind.COMMAND, names[:tenant].decode(), names[tenant : tenant + message].decode())
    return names[tenant + message :].decode(), address


class WaitingRow(NamedTuple):
    """One row: commands of a tenant that follow each other, without those that are applied."""

    tenant: str
    epoch: int
    first_sequence: int
    done: int
    """How many of its commands are applied."""
    size: int
    """The bytes of all its commands, without bodies that were left in the log."""
    commands: Sequence[RawCommand]
    """Its commands that are not applied."""
    is_held_back: bool
    """Whether the next command has failed alone, or was blocked. It is tried alone."""
    attempt: int
    """How often it has failed alone."""
    tried: int
    """How many of the next commands a process was about to apply after a crash."""
    deaths: int
    """How many processes have ended while they applied only the next command."""
    limit: int = ROW_COMMANDS
    """How many commands one transaction may apply."""

    @property
    def next(self) -> Sequence[RawCommand]:
        """The commands that one transaction may apply."""
        return self.commands[: self.limit]

    def limited(self, most_bytes: int) -> "WaitingRow":
        """Return the row with a limit: as many next commands as have at most so many bytes together; at least one."""
        sizes_together = accumulate(raw.size for raw in self.commands)
        fitting = sum(size <= most_bytes for size in sizes_together)
        return self._replace(limit=max(1, fitting))

    @property
    def key(self) -> dict[str, Any]:
        """The key of the row, as parameters."""
        return {"tenant_id": self.tenant, "epoch": self.epoch, "first_sequence": self.first_sequence}


def applied_of_rows(rows: Iterable[WaitingRow], number: int) -> list[tuple[WaitingRow, int]]:
    """Return how many commands of each row are among the first `number` that a transaction was given.

    Rows of which none is among them are left out.
    """
    found: list[tuple[WaitingRow, int]] = []
    for row in rows:
        if number > 0:
            found.append((row, min(len(row.next), number)))
        number -= len(row.next)
    return found


async def add(tx: Transaction, rows: Iterable[NewRow]) -> None:
    """Store rows, which may be applied at once."""
    await tx.executemany(_SQL["add"], [row.parameters() for row in rows])


async def find_first(reader: Reader, tenants: Sequence[str]) -> list[WaitingRow]:
    """Return the oldest row of each tenant that has one, in the order of the tenants."""
    rows = await reader.fetch_each(_SQL["first"], [{"tenant_id": tenant} for tenant in tenants])
    found = {row["tenant_id"]: _read(row) for row in rows}
    return [found[tenant] for tenant in tenants if tenant in found]


def _read(row: Row) -> WaitingRow:
    """Return a row of the statement `first`."""
    return WaitingRow(
        row["tenant_id"],
        row["epoch"],
        row["first_sequence"],
        row["done"],
        row["size"],
        _load(row["epoch"], row["commands"], row["done"]),
        row["available_at"] > 0,  # `add` and `advance` write 0, and only `postpone` another value
        row["attempt"],
        row["tried"],
        row["deaths"],
    )


async def advance(tx: Transaction, row: WaitingRow, number: int) -> None:
    """Record that the next `number` commands of a row are applied. Delete the row if it has no others."""
    if number == len(row.commands):
        await tx.execute(_SQL["delete"], row.key)
    elif number:
        await tx.execute(_SQL["advance"], {**row.key, "done": row.done + number})


async def postpone(tx: Transaction, row: WaitingRow, available_at: int, attempt: int, error: str) -> None:
    """Record that the next command of a row could not be applied."""
    values = {"available_at": available_at, "attempt": attempt, "last_error": error}
    await tx.execute(_SQL["postpone"], row.key | values)


async def mark(tx: Transaction, row: WaitingRow, tried: int) -> None:
    """Record that the next `tried` commands of a row are about to be applied after a crash."""
    await tx.execute(_SQL["try"], {**row.key, "tried": tried, "deaths": row.deaths})


async def find_tenants(reader: Reader, tenants: Iterable[str]) -> set[str]:
    """Return the tenants that have waiting commands."""
    each = [{"tenant_id": tenant} for tenant in sorted(set(tenants))]
    return {row["tenant_id"] for row in await reader.fetch_each(_SQL["find_tenant"], each)}


async def is_ready(reader: Reader, until: Position, now: int) -> bool:
    """Return whether a command up to a position waits that may be applied now."""
    times = {"now": now, "latest": now + _LATEST_MS}
    return bool(await reader.fetch(_SQL["ready_before"], until._asdict() | times))


class TenantWaits(NamedTuple):
    """What waits of one tenant."""

    number: int
    """How many commands."""
    size: int
    """Their bytes. Those of a row count until all of its commands are applied."""
    available_at: int
    """When the first of them may be applied."""


async def find_all(reader: Reader) -> dict[str, TenantWaits]:
    """Return what waits, by tenant."""
    rows = await reader.fetch(_SQL["tenants"])
    return {row["tenant_id"]: TenantWaits(int(row["number"]), int(row["size"]), row["available_at"]) for row in rows}
