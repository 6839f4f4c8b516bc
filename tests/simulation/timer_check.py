"""Holds stored rows of timers against their model, where they share batches and transactions with other slices."""

from tests.simulation.model import REACHED, SCHEDULED, Model, Name
from tests.simulation.model import Sent as SentTimer
from tests.simulation.service import MAX_ATTEMPTS, Row, Sent, Service
from timer_service.core.instant import parse_instant
from timer_service.core.message import Position


class TimersChecker:
    """Follows timers; the whole of what can befall them is in `tests.simulation.machine`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = Model(MAX_ATTEMPTS)

    def command(self, sent: Sent, position: Position) -> str:
        """Apply one command to the model; return its outcome."""
        due_at = parse_instant(sent.fields["dueAt"]) if "dueAt" in sent.fields else None
        name = Name(sent.tenant, sent.fields["serviceCallId"])
        return self._model.command(SentTimer(sent.type, name, b"", due_at), position)

    def follow(self, now: int) -> None:
        """Tell the model which timers were reached, if they may be."""
        for name, row in self._rows().items():
            timer = self._model.timers[name]
            if row["state"] == REACHED and timer.state != REACHED:
                assert timer.state == SCHEDULED, f"{name} was reached while it was {timer.state}"
                assert (timer.due_at or 0) <= now, f"{name} was reached early"
                timer.state = REACHED

    def check(self) -> None:
        """Assert that the table holds what the model does."""
        found = {
            name: (row["state"], Position(row["position_epoch"], row["position_sequence"]), row["due_at"])
            for name, row in self._rows().items()
        }
        assert found == {name: (each.state, each.position, each.due_at) for name, each in self._model.timers.items()}

    def check_finished(self) -> None:
        """Assert that every timer that is not cancelled was reached and has fired; maybe also before it was changed."""
        events = [event for event in self._service.events() if event["type"] == "DueTimeReached"]
        reached = {name.call for name, timer in self._model.timers.items() if timer.state == REACHED}
        assert reached <= {event["payload"]["serviceCallId"] for event in events}
        assert len({event["id"] for event in events}) == len(events)
        assert all(timer.state != SCHEDULED for timer in self._model.timers.values())

    def _rows(self) -> dict[Name, Row]:
        return {Name(row["tenant_id"], row["service_call_id"]): row for row in self._service.rows("timer_schedules")}
