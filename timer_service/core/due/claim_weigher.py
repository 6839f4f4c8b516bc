"""How many available rows a claim may write, by the bytes of their large texts.

A claim writes its rows with their texts, and so does the release of those that do not fit into its bytes. So these are
few. Rows are weighed at most twice: a few first, so that the texts of the others are not read if these are too large.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from timer_service.core.ports.database import Transaction

_FIRST_WEIGHED = 20

Shares = Sequence[tuple[str, int]]
"""How many rows each tenant gets."""


class Weigher:
    """Weighs the available rows of one table."""

    def __init__(self, sql: Callable[[str], str], *, has_texts: bool) -> None:
        """`sql` returns a statement of the table by name. Without large texts, everything fits."""
        self._has_texts = has_texts
        self._weigh = sql("weigh_available")
        self._weigh_of_tenant = sql("weigh_of_tenant")
        self._fitting = sql("fitting")
        self._fitting_of_tenant = sql("fitting_of_tenant")

    async def count_fitting(self, tx: Transaction, now: int, limit: int, room: int, *, least: int) -> int:
        """Return how many of the oldest rows have at most `room` bytes: at most `limit`, and at least `least`."""
        if not self._has_texts or limit <= least:
            return limit
        for weighed in sorted({min(limit, _FIRST_WEIGHED), limit}):
            (due,) = await tx.fetch(self._weigh, {"now": now, "limit": weighed})
            if due["size"] > room:
                (found,) = await tx.fetch(self._fitting, {"now": now, "limit": weighed, "room": room})
                count: int = found["count"]
                return max(count, least)
        return limit

    async def fit_shares(self, tx: Transaction, now: int, shares: Shares, room: int) -> Shares:
        """Return the shares of tenants, smaller ones if their rows have more than an equal share of `room` bytes.

        Each has at least one row. If these have too many bytes together, the last tenants are left out.
        """
        if not self._has_texts or not shares:
            return shares
        fitting, sizes = dict(shares), dict.fromkeys(dict(shares), 0)
        share_of_room = room // len(shares)
        unweighed = list(fitting)
        for rows in (_FIRST_WEIGHED, max(fitting.values())):
            limits = {tenant: min(fitting[tenant], rows) for tenant in unweighed}
            each = [{"tenant_id": tenant, "now": now, "limit": limit} for tenant, limit in limits.items()]
            sizes |= {row["tenant_id"]: row["size"] for row in await tx.fetch_each(self._weigh_of_tenant, each)}
            too_large = [tenant for tenant, limit in limits.items() if limit > 1 and sizes[tenant] > share_of_room]
            each = [
                {"tenant_id": tenant, "now": now, "limit": limits[tenant], "room": share_of_room}
                for tenant in too_large
            ]
            for row in await tx.fetch_each(self._fitting_of_tenant, each):
                fitting[row["tenant_id"]], sizes[row["tenant_id"]] = max(row["count"], 1), row["size"]
            unweighed = [tenant for tenant in unweighed if fitting[tenant] > rows]
        most = max(room, next(filter(None, sizes.values()), 0))  # a single row may have more
        count = sum(total <= most for total in accumulate(sizes.values()))
        return list(fitting.items())[:count]
