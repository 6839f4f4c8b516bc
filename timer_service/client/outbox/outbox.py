"""The outbox: a client that stores commands in the transaction of a connection of the user's."""

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, cast

from timer_service.client import user_connection
from timer_service.client.commands import Command, Ended, current_trace
from timer_service.client.connection import Connection
from timer_service.client.errors import TimerServiceError
from timer_service.client.link import Link
from timer_service.client.models import Outcome
from timer_service.client.outbox.instants import fix
from timer_service.client.outbox.table import creation
from timer_service.client.timer_client import TimerClient
from timer_service.client.user_tables import check_table
from timer_service.core.values.address import MAX_MESSAGE_BYTES

_T = TypeVar("_T")
_STORED: Final = "stored"
_NOT_CONNECTED = "an outbox only stores commands: to ask the service or to receive events, use TimerClient.connect"


class Outbox:
    """A table in the database of the user, with the commands that an `OutboxRelay` sends. See docs/outbox.md."""

    def __init__(self, table: str = "timer_outbox") -> None:
        """Name the table. Raises ValueError if the name would need quotes."""
        self.table = check_table(table)

    async def create_table(self, connection: Any) -> None:
        """Create the table if it is missing. Like any statement, it counts only after a commit of the connection."""
        await user_connection.run_script(connection, creation(self.table))

    def on(self, connection: Any) -> TimerClient:
        """Return a client whose commands are stored in the open transaction of a connection, to be sent later.

        The outcome of each command is `stored`: the outcome of the service comes later and is not seen here. What
        counts from now, such as `due_in`, counts from this moment by the clock of this machine. `timeout_seconds` has
        no effect. Queries and watches raise `TimerServiceError`.

        `connection` is one of `user_connection.KNOWN`. A method raises ValueError if it is another one, or if it is in
        no transaction.
        """
        return TimerClient(_StoredCommands(connection, self.table))


def run_sync(call: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a call in a program without an event loop: `run_sync(outbox.on(connection).cancel(…))`.

    The connection must be a synchronous one. Raises ValueError if the call waits for something else.
    """
    try:
        call.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    finally:
        call.close()
    raise ValueError("call must use a synchronous connection: with an asynchronous one, use await")


class _NoBroker:
    """In place of the connection to a broker: all that it is asked for raises an error."""

    largest = MAX_MESSAGE_BYTES

    def __getattr__(self, _: str) -> NoReturn:
        raise TimerServiceError(_NOT_CONNECTED)


class _StoredCommands(Connection):
    """A connection without a broker, which stores commands in a table."""

    def __init__(self, connection: Any, table: str) -> None:
        super().__init__(cast("Link", _NoBroker()))
        self._user_connection = connection
        self._table = table

    def command(
        self, message_type: str, tenant: str, fields: Mapping[str, Any], correlation_id: str | None = None
    ) -> Command:
        """Return a command that may be sent later, and twice. Raises ValueError if it is larger than 1 MiB."""
        now = -(-time.time_ns() // 1_000_000)  # rounded up, so that no timer is early
        return super().command(message_type, tenant, fix(message_type, fields, now), correlation_id)

    async def send_many(
        self, commands: Sequence[Command], timeout_seconds: float, progress: Callable[[int], object] | None = None
    ) -> list[Ended]:
        """Store commands. `timeout_seconds` has no effect."""
        del timeout_seconds
        if commands:
            traceparent = current_trace().get("traceparent")
            rows = [_row(each, traceparent) for each in commands]
            await user_connection.insert(self._user_connection, self._table, rows)
        if progress is not None:
            progress(len(commands))
        return [Outcome(command_id=command.id, name=_STORED) for command in commands]


def _row(command: Command, traceparent: str | None) -> dict[str, Any]:
    """Return a command as a row."""
    return {
        "tenant": command.tenant,
        "message": command.message,
        "command_id": command.id,
        "size": len(command.body),
        "traceparent": traceparent,
        "body": command.body.decode(),
    }
