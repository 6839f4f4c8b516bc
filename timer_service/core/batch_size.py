"""How many commands to handle at a time, so that no batch delays the commands of other tenants for long."""

_BATCH_SECONDS = 0.15
_SMALLEST = 50
_HELPS_BELOW = 0.7
_PATIENCE = 20


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
        self._patience = 0

    def record(self, size: int, seconds: float) -> None:
        """Record a batch: how many commands it had, and how long it took."""
        if self._patience:
            self._patience -= 1
        elif seconds <= _BATCH_SECONDS:
            self._larger = None
            if 2 * seconds <= _BATCH_SECONDS:
                self.limit = min(2 * self.limit, self._most)
        elif self._does_not_help(size, seconds):
            self._larger = None
            self._patience = _PATIENCE
            self.limit = self._most
        else:
            self._larger = size, seconds
            self.limit = min(max(int(size * _BATCH_SECONDS / seconds), _SMALLEST), self._most)

    def _does_not_help(self, size: int, seconds: float) -> bool:
        """Return whether a batch took nearly as long as one that was at least twice as large."""
        if self._larger is None:
            return False
        larger_size, longer = self._larger
        return 2 * size <= larger_size and seconds > _HELPS_BELOW * longer
