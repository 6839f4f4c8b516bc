"""A reader of the log that takes one step at a time, and the tasks of a simulated process."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.simulation.faults import EXPECTED_ERRORS, Crash, Gate, Process
from tests.simulation.log_ledger import LogLedger
from timer_service.core.intake.reader import LogReader


class GatedTask:
    """The gate and the current task of a reader or a worker. `task` is None while it is idle."""

    def __init__(self, process: Process, counts: Counter[str]) -> None:
        self.gate = Gate(process, counts)
        self.task: asyncio.Task[Any] | None = None


class SteppedReader:
    """The reader of one instance. It begins again after an expected error."""

    def __init__(self, make: Callable[[], LogReader], ledger: LogLedger) -> None:
        self._make = make
        self._ledger = ledger
        self._reader = make()
        self._begun = False

    async def read(self) -> bool:
        """Begin if necessary, and take one turn. Return whether there was anything to do."""
        try:
            if not self._begun and not await self._begin():
                return False
            return await self._reader.turn()
        except EXPECTED_ERRORS:
            self._begun = False
            raise

    async def _begin(self) -> bool:
        another_reads = False
        try:
            self._begun = await self._reader.begin()
            another_reads = not self._begun
        finally:
            if not another_reads:  # after an error it may be the reader too
                self._ledger.reader_began(self._reader)
        return self._begun

    async def stop(self) -> None:
        """Stop the reader in order, and make another one."""
        await self._reader.stop()
        await self._reader.run()  # it has stopped, so it only lets others read
        self._ledger.reader_stopped(self._reader)
        self._reader, self._begun = self._make(), False


async def wake(_at: int, _loop: str | None) -> None:
    """Do nothing, because no loop sleeps here."""


async def wake_outbox() -> None:
    """Do nothing: a test takes every pass."""


def ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore the crashes of tasks whose result is never read."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)
