"""Translation of SQLite's errors to the core's errors: an outage, a wrong set-up, or any other error."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from timer_service.core.values.errors import DatabaseSetupError, DatabaseUnavailableError

_OUTAGES = {sqlite3.OperationalError, sqlite3.DatabaseError}
"""The errors of a file that is locked, damaged, on a full disk or on a failing one."""
_WRONG_SETUP = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_WRONG_SCHEMA = re.compile(r"no such (table|column|function|index)|has no column named|but \d+ values were supplied")
"""SQLite has one code for all errors of a statement, such as a missing table and malformed JSON."""
_PRIMARY_CODE = 0xFF


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the core's error for an outage and for a wrong set-up. Other errors pass unchanged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) not in _OUTAGES:
            raise
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE  # errors of Python have none
        if code in _WRONG_SETUP or (code == sqlite3.SQLITE_ERROR and _WRONG_SCHEMA.search(str(error))):
            raise DatabaseSetupError(str(error)) from error
        if code == sqlite3.SQLITE_ERROR:
            raise  # the statement is wrong
        raise DatabaseUnavailableError(str(error)) from error
