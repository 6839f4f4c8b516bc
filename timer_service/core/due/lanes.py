"""Claims of a leased table lane by lane: the rows of a lane have the same values in some columns.

The lease is the one of `core.lease`, but each holder has its own: a token, and a length.
"""

import secrets
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.due.lease import LeasedTable
from timer_service.core.ports.database import Reader, Row, Transaction

Lane = tuple[str, ...]
"""The values of the lane columns of a leased table: tenant, queue and type of a workflow."""


class LaneLook(NamedTuple):
    """What is in a lane at an instant."""

    available: int
    """How many rows may be claimed, up to a limit."""
    next_at: int | None
    """When the next other row may be claimed; None if no row is waiting."""


class LaneClaim(NamedTuple):
    """What a holder wants of a lane."""

    lane: Lane
    limit: int
    hold_ms: int
    """The length of the lease."""
    holder: Mapping[str, Any]
    """The values of the columns `LeasedTable.holder`."""


class Lanes:
    """The claims on the rows of one table, by lane."""

    def __init__(self, table: LeasedTable) -> None:
        self._columns = table.lane
        self._key = table.key
        self._key_of = itemgetter(*table.key)
        self._order_of = itemgetter(table.oldest_first, *table.key)
        self._look = table.sql("look_at_lane")
        self._claim = table.sql("claim_of_lane")
        self._release = table.sql("release")

    async def look(self, reader: Reader, lanes: Sequence[Lane], now: int, limit: int) -> list[LaneLook]:
        """Return what is in each lane at `now`. Up to `limit` rows of a lane are counted."""
        each = [
            {**self._values(lane), "now": now, "limit": limit, "number": number} for number, lane in enumerate(lanes)
        ]
        rows = sorted(await reader.fetch_each(self._look, each), key=itemgetter("number"))
        return [LaneLook(row["available"], row["next_at"]) for row in rows]

    async def claim(self, tx: Transaction, claims: Sequence[LaneClaim], now: int) -> list[list[Row]]:
        """Claim rows that are available at `now`; return those of each claim, the oldest first.

        Adds 1 to the `attempt` of each row. Rows that another transaction has locked are left out.
        """
        tokens = [secrets.token_hex(8) for _ in claims]
        each = [
            {
                **self._values(claim.lane),
                **claim.holder,
                "now": now,
                "until": now + claim.hold_ms,
                "limit": claim.limit,
                "token": token,
            }
            for claim, token in zip(claims, tokens, strict=True)
        ]
        found: dict[str, list[Row]] = {token: [] for token in tokens}
        for row in sorted(await tx.fetch_each(self._claim, each), key=self._order_of):
            found[row["lease_token"]].append(row)
        return [found[token] for token in tokens]

    async def release(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Return rows to the waiting state in the transaction of their claim, as if they had not been claimed."""
        each = [
            {**{column: row[column] for column in self._key}, "token": row["lease_token"]}
            for row in sorted(rows, key=self._key_of)
        ]
        await tx.executemany(self._release, each)

    def _values(self, lane: Lane) -> dict[str, str]:
        return dict(zip(self._columns, lane, strict=True))
