"""The history of command streams without a database, for tests of the broker alone."""

from secrets import token_hex

from timer_service.core.intake.epochs import Epochs, FindCommand, LookAtStream, Part, Received, recognize
from timer_service.core.intake.installation import Installation, Replay
from timer_service.core.values.message import Position


class MemoryHistory:
    """A `core.broker.History` that forgets everything when the test ends."""

    def __init__(self, database_id: str = "tests") -> None:
        self._installation = Installation(database_id, None, None)
        self.parts: list[Part] = []
        self.exempt: Position | None = None
        """The newest command that no limit refuses."""

    def replay(self, since: int) -> Replay:
        """Ask for the commands since an instant, as an operator does after a restore."""
        replay = Replay(since, token_hex(8))
        self._installation = self._installation._replace(replay=replay)
        return replay

    def handle(self, sequence: int, stored_at: int) -> None:
        """Record the newest handled command, as the consumer does."""
        *older, newest = self.parts
        self.parts = [*older, newest._replace(last_sequence=sequence, last_stored_at=stored_at)]

    async def installation(self) -> Installation:
        return self._installation

    async def exempt_until(self, position: Position) -> None:
        self.exempt = position

    def replay_ended(self) -> None:
        """Record that the replay has ended, as the service does."""
        self._installation = self._installation._replace(replay=None)

    async def recognize(self, look: LookAtStream, find: FindCommand, received: Received | None = None) -> Epochs:
        stream = await look()
        self.parts = await recognize(self.parts, stream, find, received)
        return Epochs(tuple(part for part in self.parts if part.created == stream.created))
