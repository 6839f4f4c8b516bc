"""The claims of one pass of a relay that are on their way to the broker."""

import asyncio

from timer_service.core.events.settlement import Settlement

_OVERLAPPING_BATCHES = 3
"""One is claimed or settled, one is encoded and sent, and the broker stores one."""


class Flight:
    """The claims of a pass that are being published, and how to settle those that were published."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: if the claims have more together, only two overlap."""
        self._most_bytes = most_bytes
        self._publishing: dict[asyncio.Task[Settlement | None], int] = {}
        self._published: list[Settlement] = []
        self._errors: list[BaseException] = []

    @property
    def is_open(self) -> bool:
        """Whether a claim is being published."""
        return bool(self._publishing)

    @property
    def has_published(self) -> bool:
        """Whether published claims must be settled."""
        return bool(self._published)

    @property
    def is_full(self) -> bool:
        """Whether no other claim may be published meanwhile."""
        many = len(self._publishing)
        return many >= _OVERLAPPING_BATCHES or (many > 1 and sum(self._publishing.values()) > self._most_bytes)

    def add(self, task: asyncio.Task[Settlement | None], size: int) -> None:
        """Add the task that publishes a claim of `size` bytes."""
        self._publishing[task] = size

    def take_published(self) -> list[Settlement]:
        """Return what must be settled, and forget it."""
        taken, self._published = self._published, []
        return taken

    async def wait(self) -> None:
        """Wait until a claim was published. Raise its error."""
        await self._wait(asyncio.FIRST_COMPLETED)
        self.raise_first()

    async def land(self) -> None:
        """Wait until every claim was published."""
        if self._publishing:
            await self._wait(asyncio.ALL_COMPLETED)

    def raise_first(self) -> None:
        """Raise the first error."""
        if self._errors:
            raise self._errors[0]

    async def _wait(self, until: str) -> None:
        finished, _ = await asyncio.wait(self._publishing, return_when=until)
        for task in finished:
            del self._publishing[task]
            if (error := task.exception()) is not None:
                self._errors.append(error)
            elif (settlement := task.result()) is not None:
                self._published.append(settlement)
