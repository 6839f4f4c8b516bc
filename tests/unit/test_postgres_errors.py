"""What an error of PostgreSQL or of its driver means for the service."""

import asyncpg
import pytest

from timer_service.adapters.postgres.errors import translate_errors
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseSetupError,
    DatabaseUnavailableError,
    DuplicateError,
)

OUTAGES = {
    "08006": "the connection failed",
    "25006": "the server became a standby",
    "25P03": "the transaction was idle for too long",
    "28P01": "the password was changed",
    "3D000": "the database was renamed",
    "53100": "the disk is full",
    "53300": "too many connections",
    "57P01": "the server stops",
    "57P03": "the server starts",
    "58030": "the disk is broken",
}
OTHERS: dict[str, type[Exception]] = {
    "40001": ConflictError,
    "40P01": ConflictError,
    "55P03": DatabaseBlockedError,
    "57014": DatabaseBlockedError,
    "23505": DuplicateError,
    "3F000": DatabaseSetupError,
    "42501": DatabaseSetupError,
    "42703": DatabaseSetupError,
    "42883": DatabaseSetupError,
    "42P01": DatabaseSetupError,
    "22003": asyncpg.NumericValueOutOfRangeError,
    "23514": asyncpg.CheckViolationError,
}
OF_THE_DRIVER: list[tuple[Exception, type[Exception]]] = [
    (OSError("connection refused"), DatabaseUnavailableError),
    (TimeoutError(), DatabaseUnavailableError),
    (asyncpg.InternalClientError("got result for unknown protocol state"), DatabaseUnavailableError),
    (asyncpg.InterfaceError("connection is closed"), DatabaseUnavailableError),
    (asyncpg.InterfaceError("the underlying connection was closed"), DatabaseUnavailableError),
    (asyncpg.InterfaceError("pool is closing"), DatabaseUnavailableError),
    (asyncpg.InterfaceError("connection has been released back to the pool"), DatabaseUnavailableError),
    (asyncpg.InterfaceError("another operation is in progress"), asyncpg.InterfaceError),
    (asyncpg.InvalidCachedStatementError("cached plan must not change result type"), ConflictError),
]


def of_server(sqlstate: str) -> Exception:
    error: Exception = asyncpg.PostgresError.new({"C": sqlstate, "M": "no", "D": "Key (id)=(4711)", "t": "outbox"})
    return error


def translated(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught, translate_errors():  # noqa: PT011
        raise error
    return caught.value


@pytest.mark.parametrize("sqlstate", OUTAGES)
def test_outages(sqlstate: str) -> None:
    """The service waits for the end of an outage. It blames no command, and no other session."""
    assert type(translated(of_server(sqlstate))) is DatabaseUnavailableError


@pytest.mark.parametrize(("sqlstate", "expected"), OTHERS.items())
def test_other_errors_of_the_server(sqlstate: str, expected: type[Exception]) -> None:
    """A conflict is retried, a lock is waited for, and a wrong value is the fault of a command. No value is shown."""
    found = translated(of_server(sqlstate))
    assert type(found) is expected
    assert "4711" not in error_text(found)


@pytest.mark.parametrize(("error", "expected"), OF_THE_DRIVER)
def test_errors_of_the_driver(error: Exception, expected: type[Exception]) -> None:
    """A lost connection is an outage. A wrong call is not: it is a fault of the service."""
    found = translated(error)
    assert (type(found), str(found)) == (expected, str(error) or "no answer in time")
