"""What a scenario knows of the database."""

from collections.abc import Mapping
from typing import Protocol


class Store(Protocol):
    """A database of a scenario's own, asked past the service."""

    @property
    def settings(self) -> Mapping[str, str]:
        """How the service finds it."""
        ...

    async def facts(self) -> Mapping[str, str]:
        """Return its version and what durability it gives."""
        ...

    async def rows(self) -> int:
        """Count the timers."""
        ...

    async def poll(self) -> None:
        """Ask what a poll asks that finds nothing due."""
        ...
