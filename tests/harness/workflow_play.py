"""Plays a workflow function without a service: a test decides which result the function gets next."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from timer_service.worker import WorkflowFunction
from timer_service.worker.errors import ErrorText
from timer_service.worker.names import Identity
from timer_service.worker.replay import Replay
from timer_service.worker.values import Decision, Effect, Finished, Kind, Outcome, StoredEffect

IDENTITY = Identity("acme", "order-1", "2026-11-21T09:00:00.000Z")


def failed(text: str, kind: str = "ValueError") -> Outcome:
    """Return the outcome of a step that raised an error in its last attempt."""
    return Outcome(failed=True, error=ErrorText(kind, text))


class Play:
    """One execution of a function: what it has asked for, and the results that it got."""

    def __init__(
        self, function: Callable[..., Awaitable[Any]], data: Any = None, stored: Sequence[StoredEffect] = ()
    ) -> None:
        self.replay = Replay(WorkflowFunction("test", function), IDENTITY, data, stored)
        self.begun: dict[str, Effect] = {}
        self.dropped: list[str] = []
        self.history: list[StoredEffect] = []
        self.finished: Finished | None = None
        try:
            self._take(self.replay.advance())
        except BaseException:
            self.replay.close()
            raise

    def give(self, key: str, value: Any = None) -> "Play":
        """Give the function a result, which is a value or an `Outcome`."""
        outcome = value if isinstance(value, Outcome) else Outcome(value)
        decision = self.replay.deliver(key, outcome)
        self.history.append(StoredEffect(key, self.begun[key].kind, outcome, self.replay.seq))
        self._take(decision)
        return self

    @property
    def result(self) -> Any:
        """The result of the function. Raises its error."""
        assert self.finished is not None, f"the function waits for {self.waiting()}"
        if self.finished.error is not None:
            raise self.finished.error
        return self.finished.result

    def waiting(self) -> list[str]:
        """Return the keys of the effects that have begun and are not over."""
        return [key for key in self.begun if not self.replay.has_got(key) and key not in self.dropped]

    def stored(self, results: int) -> list[StoredEffect]:
        """Return what the service has stored after so many results: these results, and the open waits."""
        waits = [effect for effect in self.begun.values() if effect.kind is not Kind.STEP and effect.after <= results]
        known = {effect.key for effect in self.history[:results]}
        open_waits = [StoredEffect(wait.key, wait.kind) for wait in waits if wait.key not in known]
        return [*self.history[:results], *open_waits]

    def _take(self, decision: Decision) -> None:
        self.begun |= {effect.key: effect for effect in decision.begin}
        self.dropped += [effect.key for effect in decision.dropped]
        self.finished = decision.finished
