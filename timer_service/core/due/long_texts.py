"""Long texts of rows, in a table of their own.

So the rows are narrow: a claim is a number of rows, and no change of a row writes its long text again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import DamagedDataError

_SQL = load_sql("timer_service.core.due", "long_texts.sql")

LONGEST_IN_ROW = 1000
"""A text with more characters is a long text."""

TextKey = tuple[str, str]
"""The tenant, and the id of the text."""


class LongTexts(NamedTuple):
    """Where the long texts of one table are. They are written and deleted in the transactions that do so with rows."""

    owner: str
    """The table."""
    column: str
    """Its column for texts; NULL in a row with a long text."""
    length: str
    """Its column for the number of characters of a long text; NULL in a row without one."""
    text_id: str
    """Its column that identifies the text in a tenant. A row that gets another text gets another id."""

    @property
    def expression(self) -> str:
        """The SQL expression for the text of a row, long or not."""
        return (
            f"CASE WHEN {self.length} IS NULL THEN {self.column} ELSE (SELECT long_texts.text FROM long_texts "  # noqa: S608 - no user input
            f"WHERE long_texts.owner = '{self.owner}' AND long_texts.tenant_id = {self.owner}.tenant_id "
            f"AND long_texts.text_id = {self.owner}.{self.text_id}) END"
        )

    def length_of(self, row: Row) -> int:
        """Return how many characters the long text of a row has; 0 without one."""
        return row[self.length] or 0

    async def add(self, tx: Transaction, texts: Mapping[TextKey, str]) -> None:
        """Write long texts."""
        if texts:
            await tx.executemany(_SQL["add"], [{**self._parameters(key), "text": texts[key]} for key in sorted(texts)])

    async def load(self, reader: Reader, rows: Iterable[Row]) -> dict[TextKey, str]:
        """Return the long texts of rows."""
        if not (keys := self._keys_of(rows)):
            return {}
        found = await reader.fetch_each(_SQL["load"], [self._parameters(key) for key in keys])
        return {(row["tenant_id"], row["text_id"]): row["text"] for row in found}

    def with_text(self, row: Row, columns: Sequence[str], texts: Mapping[TextKey, str]) -> Row:
        """Return a row as it is if its text is short, else the given columns of it with its long text from `texts`.

        Raises `DamagedDataError` if `texts` has no such text, also because the row has got another text meanwhile.
        """
        if row[self.length] is None:
            return row
        if (text := texts.get(self._key_of(row))) is None:
            raise DamagedDataError("its long text is missing")
        return {name: row[name] for name in columns} | {self.column: text}

    async def delete(self, tx: Transaction, keys: Iterable[TextKey]) -> None:
        """Delete long texts. The caller has deleted their rows, or given them other texts."""
        if deleted := [self._parameters(key) for key in sorted(keys)]:
            await tx.executemany(_SQL["delete"], deleted)

    async def delete_of_deleted(self, tx: Transaction, rows: Iterable[Row]) -> None:
        """Delete the long texts of those rows that do not exist any more."""
        if keys := self._keys_of(rows):
            statement = _SQL["delete_of_deleted"].format(owner=self.owner, text_id=self.text_id)
            await tx.executemany(statement, [self._parameters(key) for key in keys])

    def _keys_of(self, rows: Iterable[Row]) -> list[TextKey]:
        return sorted(self._key_of(row) for row in rows if row[self.length] is not None)

    def _key_of(self, row: Row) -> TextKey:
        return row["tenant_id"], row[self.text_id]

    def _parameters(self, key: TextKey) -> Mapping[str, str]:
        return {"owner": self.owner, "tenant_id": key[0], "text_id": key[1]}
