"""Sends the commands of an outbox.

    user's transaction -> row -> read a page -> broker stores it -> delete the rows
                           ^                           |
                           +--- a crash here: sent again, under the same ids

The commands about one thing, for example a timer, are sent in the order of their rows.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Never

from timer_service.client.checks import check_type
from timer_service.client.commands import Command
from timer_service.client.connection import Connection, connector
from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.client.outbox.outbox import Outbox
from timer_service.client.outbox.store import OutboxRow, OutboxStore, RefusedCommand, problem_of
from timer_service.client.outbox.windows import windows
from timer_service.client.own_database import database_errors, is_postgres, open_session
from timer_service.core.ports.completion import run_to_completion
from timer_service.core.values.delays import Delays
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

POLL_SECONDS = 1
"""How long a row waits at most if nobody calls `wake`."""
_AGAIN_SECONDS = 1
_MOST_PAUSED = 100
"""If so many tenants wait, the others wait too: each one is a parameter of a statement."""
LEAST_SECONDS = 10
"""How long the broker may take to acknowledge commands, if they are small."""
_BYTES_PER_SECOND = 100_000
"""The slowest connection to a broker with which a page can be sent."""


class OutboxRelay:
    """Sends the commands of an outbox in the order of its rows, at least once each. Run one in each program.

    With PostgreSQL, one relay of a table sends at a time, and the others wait to take over.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: str | os.PathLike[str],
        url: str | None = None,
        *,
        subject_prefix: str = "timer",
        inbox_prefix: str = "_INBOX",
        **options: Any,
    ) -> None:
        """Take the database of the outbox, and the broker.

        `database` is the path of a SQLite file, or a URL that begins with `postgresql://`. The other arguments are
        those of `TimerClient.connect`. Raises ValueError with the name of a wrong argument.
        """
        is_postgres(database)
        self._table = check_type("outbox", outbox, Outbox, "an Outbox").table
        self._database = database
        self._connect = connector("timer-outbox", url, subject_prefix, inbox_prefix, options)
        self._woken = asyncio.Event()
        self._problem = ""
        """Why nothing could be sent lately."""
        self._unsettled: tuple[Sequence[OutboxRow], Mapping[str, str | None]] = (), {}
        """The rows whose commands have ended, and how, while the database refuses to delete or mark them."""

    def wake(self) -> None:
        """Send what was committed now, not at the next look, which comes within a second. Only for the event loop."""
        self._woken.set()

    async def run(self) -> Never:
        """Send commands until cancelled.

        Goes on by itself after errors of the database and the broker, and logs them. Raises `TimerServiceError` if the
        database has no such table.
        """
        while True:
            try:
                async with open_session(self._database) as database, self._connect() as broker:
                    await self._send_rows(OutboxStore(database, self._table), broker)
            except _errors() as error:
                self._report(str(error) if isinstance(error, NoAnswerError) else error_text(error))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def refused(self) -> list[RefusedCommand]:
        """Return the oldest 1,000 commands that the broker can never store, for example because they are too large.

        They stay in the table: delete their rows, or set `error` to NULL to send them again.
        """
        async with open_session(self._database) as database:
            return await OutboxStore(database, self._table).refused()

    async def _send_rows(self, store: OutboxStore, broker: Connection) -> Never:
        """Send pages of rows, and wait while there are none. Raises an error of the database or a lost connection."""
        if not await store.exists():
            raise TimerServiceError(f"the database has no table {self._table}: create it with Outbox.create_table")
        delays = Delays()
        paused: dict[str, float] = {}
        """When the commands of a tenant are tried again, of the tenants whose commands were not stored."""
        await self._until_locked(store)
        await self._settle(store, *self._unsettled)
        while True:
            self._woken.clear()
            waiting = [tenant for tenant, until in paused.items() if until > _now()]
            rows = await store.read(waiting) if len(waiting) < _MOST_PAUSED else []
            if not rows:
                await self._wait()
                continue
            for tenant, error in (await self._send(store, broker, rows)).items():
                if error is None:
                    paused.pop(tenant, None)
                    delays.forget(tenant)
                else:
                    paused[tenant] = _now() + delays.next(tenant).total_seconds()

    async def _send(
        self, store: OutboxStore, broker: Connection, rows: Sequence[OutboxRow]
    ) -> Mapping[str, str | None]:
        """Send rows and settle them. Returns for each tenant why not all of its commands were stored, or None.

        Raises `NoAnswerError` if there is no connection.
        """
        errors: dict[str, str | None] = {row.tenant: None for row in rows}
        problems = {row.command_id: problem for row in rows if (problem := problem_of(row)) is not None}
        await self._settle(store, [row for row in rows if row.command_id in problems], problems)
        for window in windows([row for row in rows if row.command_id not in problems]):
            sent = [row for row in window if errors[row.tenant] is None]
            stored = await broker.store_many([_command(row) for row in sent], _seconds(sent))
            await self._settle(store, sent, stored.endings)
            errors.update({row.tenant: stored.error for row in sent if row.command_id not in stored.endings})
        waiting = [f"of the tenant {tenant}: {error}" for tenant, error in errors.items() if error is not None]
        self._report(waiting[0] if waiting else "")
        return errors

    async def _settle(self, store: OutboxStore, rows: Sequence[OutboxRow], endings: Mapping[str, str | None]) -> None:
        """Delete the rows that are stored, and mark and log those that can never be sent.

        What the database refuses is tried again before anything is sent.
        """
        self._unsettled = rows, endings
        await run_to_completion(store.settle(rows, endings))
        self._unsettled = (), {}
        for row in rows:
            if (refusal := endings.get(row.command_id)) is not None:
                log.error("the command %s of the tenant %s is refused: %s", row.command_id, row.tenant, refusal)

    async def _until_locked(self, store: OutboxStore) -> None:
        """Wait until no other relay sends the commands of the table."""
        if await store.lock():
            return
        log.info("another relay sends the commands in the table %s", self._table)
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            if await store.lock():
                return

    async def _wait(self) -> None:
        """Wait until the next look, or until woken."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _report(self, problem: str) -> None:
        """Log why commands wait, once for each reason."""
        if problem and problem != self._problem:
            log.warning("commands wait in the table %s: %s", self._table, problem)
        self._problem = problem


def _command(row: OutboxRow) -> Command:
    """Return the command of a row."""
    trace = {} if row.traceparent is None else {"traceparent": row.traceparent}
    return Command(row.command_id, row.tenant, row.message, row.body.encode(), trace)


def _seconds(rows: Sequence[OutboxRow]) -> float:
    """Return how long the broker may take to store rows."""
    return LEAST_SECONDS + sum(len(row.body) for row in rows) / _BYTES_PER_SECOND


def _errors() -> tuple[type[Exception], ...]:
    return (NoAnswerError, *database_errors())


def _now() -> float:
    return asyncio.get_running_loop().time()
