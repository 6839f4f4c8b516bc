"""The interface of the databases."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from benchmarks.stores.filling import Filling

PROGRESS = """
SELECT (SELECT sequence FROM command_log) AS sequence,
    (SELECT SUM(number_of_commands - done) FROM waiting_commands) AS waiting
"""


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
