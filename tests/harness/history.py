"""The history of command streams without a database, for tests of the broker alone."""

from timer_service.core.epochs import Epochs, FindCommand, LookAtStream, Part, recognize
from timer_service.core.installation import Installation


class MemoryHistory:
    """A `core.broker.History` that forgets everything when the test ends."""

    def __init__(self, database_id: str = "tests") -> None:
        self._installation = Installation(database_id, None)
        self.parts: list[Part] = []

    def replay(self, since: int) -> None:
        """Ask for the commands since an instant, as an operator does after a restore."""
        self._installation = self._installation._replace(replay_since=since)

    def handle(self, sequence: int, stored_at: int) -> None:
        """Record the newest handled command, as the consumer does."""
        *older, newest = self.parts
        self.parts = [*older, newest._replace(last_sequence=sequence, last_stored_at=stored_at)]

    async def installation(self) -> Installation:
        return self._installation

    def replay_ended(self) -> None:
        """Record that the replay has ended, as the service does."""
        self._installation = self._installation._replace(replay_since=None)

    async def recognize(self, look: LookAtStream, find: FindCommand) -> Epochs:
        stream = await look()
        self.parts = await recognize(self.parts, stream, find)
        return Epochs(tuple(part for part in self.parts if part.created == stream.created))
