"""Which rows of a claim fit into its bytes."""

from collections import Counter
from collections.abc import Sequence

from timer_service.core.database import Row


def split_by_bytes(rows: Sequence[Row], limit: int) -> tuple[list[Row], list[Row]]:
    """Split claimed rows into those whose sizes fit into `limit`, at least one, and the others. Both keep their order.

    Each tenant gets an equal share first, and the oldest rows get the rest. The rows of a tenant are kept in order: if
    one does not fit, its later rows are left out too.
    """
    share = limit // len({row["tenant_id"] for row in rows})
    kept: set[int] = set()
    total = 0
    for limit_of_tenant in (share, limit):
        used: Counter[str] = Counter()
        full: set[str] = set()
        for index, row in enumerate(rows):
            tenant, size = row["tenant_id"], row["size"]
            new = 0 if index in kept else size
            if tenant in full or used[tenant] + size > limit_of_tenant or total + new > limit:
                full.add(tenant)
                continue
            used[tenant] += size
            total += new
            kept.add(index)
    kept = kept or {0}
    return [row for n, row in enumerate(rows) if n in kept], [row for n, row in enumerate(rows) if n not in kept]
