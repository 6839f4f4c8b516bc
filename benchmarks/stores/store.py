"""The interface of the databases."""

from collections.abc import Mapping
from typing import Protocol


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
