"""The tenants that have rows of a kind, and how many. An operator does not know all tenants by heart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timer_service.core.due.row_counts import CountedRows
from timer_service.core.ports.database import Reader
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.ui", "tenants.sql")
SHOWN = 50
MOST_COUNTED = 1000


class Rows(NamedTuple):
    """The rows of a table that match. An index that begins with the tenant must hold exactly them."""

    table: str
    where: str = "TRUE"

    def sql(self, name: str, **columns: str) -> str:
        """Return a statement of `tenants.sql` for these rows. `columns` are the names that it leaves open."""
        return _SQL[name].format(table=self.table, where=self.where, **columns)


class TenantPage(NamedTuple):
    """A page of tenants, in order of their names."""

    names: Sequence[str]
    after: str | None = None
    """The last tenant of the page, if there are more."""


async def page(reader: Reader, rows: Rows, after: str, limit: int = SHOWN) -> TenantPage:
    """Return the next tenants that have such rows."""
    found = await reader.fetch(rows.sql("page"), {"after": after, "limit": limit + 1})
    names = [row["tenant_id"] for row in found]
    return TenantPage(names) if len(names) <= limit else TenantPage(names[:limit], names[limit - 1])


async def count(reader: Reader, rows: Rows, names: Sequence[str]) -> Mapping[str, int]:
    """Return how many such rows each tenant has. Counting stops at `MOST_COUNTED`."""
    found = await reader.fetch_each(rows.sql("count"), [{"tenant_id": name, "limit": MOST_COUNTED} for name in names])
    return {row["tenant_id"]: row["count"] for row in found}


async def count_all(reader: Reader, rows: Rows) -> int:
    """Return how many such rows all tenants have. Counting stops at `MOST_COUNTED`."""
    (row,) = await reader.fetch(CountedRows(rows.table, "", rows.where).sql, {"limit": MOST_COUNTED})
    return int(row["count"])
