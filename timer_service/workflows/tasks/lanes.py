"""The claims of workers on workflows, lane by lane: a lane is a tenant, a queue and a type.

Each claim is a lease: a token, and a length that the worker chooses.
"""

import secrets
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from timer_service.core.intake.route import Lane
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.workflows.store import COLUMNS

_SQL = load_sql("timer_service.workflows.tasks", "lanes.sql")
_SQL["claim"] = _SQL["claim"].format(columns=", ".join(COLUMNS))
OVERDUE = {"workflows": _SQL["overdue"]}
"""The statement that counts the workflows that wait for workers, by the table."""
_ORDER = itemgetter("due_at", "tenant_id", "workflow_id")


class LaneLook(NamedTuple):
    """What is in a lane at an instant."""

    available: int
    """How many workflows may be claimed, up to a limit."""
    next_at: int | None
    """When the next other one may be claimed; None if none is waiting."""


class LaneClaim(NamedTuple):
    """What a worker wants of a lane."""

    lane: Lane
    limit: int
    worker_id: str
    lease_ms: int


async def look(reader: Reader, lanes: Sequence[Lane], now: int, limit: int) -> dict[Lane, LaneLook]:
    """Return what is in each lane at `now`. Up to `limit` workflows of a lane are counted."""
    each = [{**_values(lane), "now": now, "limit": limit, "number": number} for number, lane in enumerate(lanes)]
    rows = await reader.fetch_each(_SQL["look"], each)
    return {lanes[row["number"]]: LaneLook(row["available"], row["next_at"]) for row in rows}


async def claim(tx: Transaction, claims: Sequence[LaneClaim], now: int) -> list[list[Row]]:
    """Claim workflows that are available at `now`; return the rows of each claim, the oldest first.

    Adds 1 to the `attempt` of each row. Rows that another transaction has locked are left out.
    """
    tokens = [secrets.token_hex(8) for _ in claims]
    found: dict[str, list[Row]] = {token: [] for token in tokens}
    each = [
        {
            **_values(claim.lane),
            "now": now,
            "until": now + claim.lease_ms,
            "limit": claim.limit,
            "token": token,
            "worker_id": claim.worker_id,
            "lease_ms": claim.lease_ms,
        }
        for claim, token in zip(claims, tokens, strict=True)
    ]
    for row in sorted(await tx.fetch_each(_SQL["claim"], each), key=_ORDER):
        found[row["lease_token"]].append(row)
    return [found[token] for token in tokens]


async def release(tx: Transaction, rows: Sequence[Row]) -> None:
    """Return rows to the waiting state in the transaction of their claim, as if they had not been claimed."""
    each = [
        {"tenant_id": row["tenant_id"], "workflow_id": row["workflow_id"], "token": row["lease_token"]}
        for row in sorted(rows, key=itemgetter("tenant_id", "workflow_id"))
    ]
    await tx.executemany(_SQL["release"], each)


def _values(lane: Lane) -> dict[str, str]:
    return dict(zip(("tenant_id", "queue", "type"), lane, strict=True))
