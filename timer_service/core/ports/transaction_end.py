"""What is called when a transaction has ended. For the adapters of databases."""

from collections.abc import Callable
from contextlib import ExitStack


class TransactionEnd(ExitStack):
    """What a transaction calls at its end. If this is closed before `committed`, the transaction was rolled back."""

    def __init__(self) -> None:
        super().__init__()
        self._then: list[Callable[[], None]] = []

    def on_commit(self, then: Callable[[], None]) -> None:
        """See `Transaction.on_commit`."""
        self._then.append(then)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """See `Transaction.on_rollback`."""
        self.callback(undo)

    def committed(self) -> None:
        """Call what waits for the commit, and forget what waits for a rollback."""
        self.pop_all()
        for then in self._then:
            then()
