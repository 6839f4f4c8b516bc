"""How many commands to handle at a time, so that no batch delays the commands of other tenants for long."""

BATCH_SECONDS = 0.15
"""How long a batch may take. The consumer puts back the commands that are not handled by then."""
_SMALLEST = 50
_HELPS_BELOW = 0.7
_FUTILE = 2
_PATIENCE = 5


class BatchSize:
    """The size of the next batch. It follows the time that batches take.

    Rejected commands take much longer than others, so fewer of them make a batch. If smaller batches are not much
    faster, the time does not come from the commands, but for example from a distant database. Then batches are large
    again for a while: small ones would only handle fewer commands per second.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most
        self._larger: tuple[int, float] | None = None
        self._futile = 0
        self._patience = 0

    def record(self, size: int, seconds: float, *, cut: bool = False) -> None:
        """Record a batch: how many commands were handled, and how long that took. `cut`: others were put back.

        If a batch was cut, the time certainly comes from its commands.
        """
        if self._patience:
            self._patience -= 1
        elif cut:
            self._larger, self._futile = None, 0
            self.limit = self._fitting(size, seconds)
        elif seconds <= BATCH_SECONDS:
            self._larger, self._futile = None, 0
            if 2 * seconds <= BATCH_SECONDS:
                self.limit = min(2 * self.limit, self._most)
        else:
            self._shrink(size, seconds)

    def _shrink(self, size: int, seconds: float) -> None:
        if self._larger is None:
            self._larger = size, seconds
        elif 2 * size <= self._larger[0]:  # else the sizes are too similar to compare their times
            if seconds > _HELPS_BELOW * self._larger[1]:
                self._futile += 1
            else:
                self._larger, self._futile = (size, seconds), 0
        if self._futile == _FUTILE:
            self._larger, self._futile, self._patience = None, 0, _PATIENCE
            self.limit = self._most
        else:
            self.limit = self._fitting(size, seconds)

    def _fitting(self, size: int, seconds: float) -> int:
        """Return how many commands take the time of a batch if `size` commands take `seconds`."""
        return min(max(int(size * BATCH_SECONDS / max(seconds, BATCH_SECONDS)), _SMALLEST), self._most)
