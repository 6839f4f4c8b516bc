"""How many commands to handle at a time, so that no batch delays the commands of other tenants for long."""

_BATCH_SECONDS = 0.15
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

    def record(self, size: int, seconds: float) -> None:
        """Record a batch: how many commands it had, and how long it took."""
        if self._patience:
            self._patience -= 1
        elif seconds <= _BATCH_SECONDS:
            self._larger, self._futile = None, 0
            if 2 * seconds <= _BATCH_SECONDS:
                self.limit = min(2 * self.limit, self._most)
        else:
            self._shrink(size, seconds)

    def _shrink(self, size: int, seconds: float) -> None:
        if self._does_not_help(size, seconds):
            self._futile += 1
        else:
            self._larger, self._futile = (size, seconds), 0
        if self._futile == _FUTILE:
            self._larger, self._futile, self._patience = None, 0, _PATIENCE
            self.limit = self._most
        else:
            self.limit = min(max(int(size * _BATCH_SECONDS / seconds), _SMALLEST), self._most)

    def _does_not_help(self, size: int, seconds: float) -> bool:
        """Return whether a batch took nearly as long as one that was at least twice as large."""
        if self._larger is None:
            return False
        larger_size, longer = self._larger
        return 2 * size <= larger_size and seconds > _HELPS_BELOW * longer
