"""The interface of the databases, and the timers that are written straight into them.

Sent as commands, ten million timers would take ten minutes. The rows are those that a ScheduleTimer with a small `data`
leaves.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

PROGRESS = """
SELECT (SELECT sequence FROM command_log) AS sequence,
    (SELECT SUM(number_of_commands - done) FROM waiting_commands) AS waiting
"""


class Filling(NamedTuple):
    """Timers of the tenant `bench`, with the numbers from `first` on. They are due 1 ms after each other."""

    first: int
    timers: int
    due_at: int
    reached_at: int | None = None
    """When they fired; None if they are still to fire. Then they are due at that instant at the latest."""


def call(number: int) -> str:
    """Return the id of a timer."""
    return f"call-{number:09d}"


_COLUMNS = (
    "tenant_id, service_call_id, state, due_at, data, causation_id, event_id, registered_at, reached_at, "
    "position_epoch, position_sequence, available_at"
)
_DATA = '{"order":4711,"step":"payment"}'


def insert(numbers: str, numbered: str, padded: str, random_id: str, filling: Filling) -> str:
    """Return the statement. `numbers` is a clause FROM that has the column `n`; the others are expressions."""
    spread = "n" if filling.reached_at is None else "0"
    due_at = f"{filling.due_at} + {spread}"
    reached = filling.reached_at is not None
    return (
        f"{numbered} INSERT INTO timer_schedules ({_COLUMNS}) "
        f"SELECT 'bench', 'call-' || {padded}, '{'Reached' if reached else 'Scheduled'}', {due_at}, '{_DATA}', "
        f"'schedule-bench-call-' || {padded}, {random_id}, {filling.due_at - 1000}, "
        f"{filling.reached_at if reached else 'NULL'}, 1, n + 1, {'NULL' if reached else due_at} FROM {numbers}"
    )


class Progress(NamedTuple):
    """How far the commands are handled, at one moment."""

    sequence: int
    """The sequence in the stream of the last command that was read in a transaction."""
    waiting: int
    """How many commands up to this one are stored, to be applied later."""


class Store(Protocol):
    """The database of one scenario, queried without the service."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings with which the service finds the database."""
        ...

    async def facts(self) -> Mapping[str, str]:
        """Return the version and the durability settings."""
        ...

    async def rows(self) -> int:
        """Return the number of timers."""
        ...

    async def progress(self) -> Progress:
        """Return how far the commands are handled."""
        ...

    async def poll(self) -> None:
        """Run the queries of a poll that finds no due timer."""
        ...

    async def size(self) -> int:
        """Return the bytes of the database on the disk."""
        ...

    async def fill(self, filling: Filling) -> None:
        """Write timers into the database. The service must not run, and must have made the tables."""
        ...
