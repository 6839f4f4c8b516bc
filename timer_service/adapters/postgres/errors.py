"""What asyncpg raises -> what the core knows: away for now, in conflict with another instance, or simply wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from timer_service.core.errors import ConflictError, DatabaseUnavailableError

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,  # a statement that met the server just as it went away
    asyncpg.InsufficientResourcesError,  # also a full disk
    asyncpg.OperatorInterventionError,  # stopped, crashed, starting up
    asyncpg.ReadOnlySQLTransactionError,  # turned into a standby
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.PostgresSystemError,
)
_LOST = ("is closed", "was closed", "is closing", "released back")
_CONFLICTS = (
    asyncpg.TransactionRollbackError,  # deadlock, serialisation
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidCachedStatementError,  # another instance migrated
)


def is_outage(error: BaseException) -> bool:
    """Whether to wait and try again: the statement is not to blame."""
    return isinstance(error, _AWAY) or (
        # asyncpg has one type for a connection that was lost and for a call that is wrong.
        isinstance(error, asyncpg.InterfaceError) and any(word in str(error) for word in _LOST)
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise `DatabaseUnavailableError` or `ConflictError` for what is one; leave the rest as it is."""
    try:
        yield
    except _CONFLICTS as error:
        raise ConflictError(str(error)) from error
    except Exception as error:
        if is_outage(error):
            raise DatabaseUnavailableError(str(error) or type(error).__name__) from error
        raise
