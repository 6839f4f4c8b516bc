"""Translation of asyncpg's errors to the core's errors: an outage, a wrong set-up, a conflict, a duplicate, others."""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseSetupError,
    DatabaseUnavailableError,
    DuplicateError,
)

_OUTAGES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,  # a statement that was running when the server stopped
    asyncpg.InsufficientResourcesError,  # includes a full disk
    asyncpg.OperatorInterventionError,  # stopped, crashed, starting up
    asyncpg.ReadOnlySQLTransactionError,  # the server became a standby
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.PostgresSystemError,
)
LOGIN_REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
_WRONG_SETUP = (
    # Missing grants, tables, columns and functions, and columns of wrong types. Statements hold no values of users.
    asyncpg.SyntaxOrAccessError,
    asyncpg.InvalidSchemaNameError,
)
_BLOCKED = (
    asyncpg.LockNotAvailableError,  # after `lock_timeout`
    asyncpg.QueryCanceledError,  # after `statement_timeout`, or by an operator
)
_LOST_CONNECTION = ("is closed", "was closed", "is closing", "released back")
_CONFLICTS = (
    asyncpg.TransactionRollbackError,  # deadlock, serialisation
    asyncpg.InvalidCachedStatementError,  # another instance migrated
)


def is_outage(error: BaseException) -> bool:
    """Return whether the error is an outage. The caller should wait and retry."""
    return isinstance(error, _OUTAGES + LOGIN_REFUSED) or (
        # asyncpg raises the same type for a lost connection and for a wrong call.
        isinstance(error, asyncpg.InterfaceError) and any(word in str(error) for word in _LOST_CONNECTION)
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the core's error for an outage, a wrong set-up, a conflict, a duplicate, a lock. Add a note to others.

    The messages contain no values of rows.
    """
    try:
        yield
    except _BLOCKED as error:
        where = getattr(error, "context", None)  # such as: while locking tuple (0,1) in relation "timer_schedules"
        raise DatabaseBlockedError(f"{text_of(error)}: {where}" if where else text_of(error)) from error
    except _CONFLICTS as error:
        raise ConflictError(text_of(error)) from error
    except asyncpg.UniqueViolationError as error:
        raise DuplicateError(f"{text_of(error)} ({_place(error)})") from error
    except _WRONG_SETUP as error:
        raise DatabaseSetupError(text_of(error)) from error
    except Exception as error:
        if is_outage(error):
            raise DatabaseUnavailableError(text_of(error)) from error
        if isinstance(error, asyncpg.PostgresError):
            error.add_note(_place(error))
        raise


def text_of(error: BaseException) -> str:
    """Return the message of an error, or its type, without its detail, which can contain the values of a row."""
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0])
    reason = error.strerror if isinstance(error, OSError) else None  # without the number
    return reason or str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def _place(error: asyncpg.PostgresError) -> str:
    """Return where a statement failed. The message itself can contain the value that is wrong."""
    names = ("table_name", "column_name", "constraint_name")
    places = [f"{name.removesuffix('_name')} {place}" for name in names if (place := getattr(error, name, None))]
    return ", ".join([f"SQLSTATE {error.sqlstate}", *places])
