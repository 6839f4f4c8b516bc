"""The tables of the client in the database of the user."""

import re
from collections.abc import Mapping, Sequence

_LOCK = 740_331_902_117
"""An arbitrary key of an advisory lock: programs that start together create a table one after the other."""


def check_table(table: object) -> str:
    """Return the name of a table that needs no quotes."""
    if isinstance(table, str) and re.fullmatch("[a-z_][a-z0-9_]{0,47}", table):
        return table
    raise ValueError("table must be 1 to 48 lower-case letters, digits or underscores, and not begin with a digit")


def scripts(table: str, definitions: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Return the statements that create a table if it is missing, for each engine, from those that create it.

    PostgreSQL refuses `CREATE TABLE IF NOT EXISTS` to a login that may not create tables, also if the table exists. And
    it raises an error if two sessions create a table at the same time.
    """
    create = "; ".join(definitions["postgresql"])
    script = (
        f"DO $$ BEGIN IF to_regclass('{table}') IS NULL THEN "
        f"PERFORM pg_advisory_xact_lock({_LOCK}); {create}; END IF; END $$"
    )
    return {"sqlite": definitions["sqlite"], "postgresql": [script]}
