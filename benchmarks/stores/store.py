"""The interface of the databases."""

from collections.abc import Mapping
from typing import Protocol

from benchmarks.stores.filling import Filling


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

    async def poll(self) -> None:
        """Run the queries of a poll that finds no due timer."""
        ...

    async def size(self) -> int:
        """Return the bytes of the database on the disk."""
        ...

    async def fill(self, filling: Filling) -> None:
        """Write timers into the database. The service must not run, and must have made the tables."""
        ...
