"""Compares the rows of timers with the model of timers, when timers share batches with other slices."""

from tests.simulation.service import MAX_ATTEMPTS, Row, SentCommand, Service
from tests.simulation.timer_model import REACHED, SCHEDULED, TimerCommand, TimerName, TimersModel
from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import Position


class TimersChecker:
    """Applies commands to the model of timers. `tests.simulation.timer_state_machine` tests timers more thoroughly."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = TimersModel(MAX_ATTEMPTS)

    def command(self, sent: SentCommand, command_id: str, position: Position) -> str:
        """Apply one command to the model and return its outcome."""
        due_at = parse_instant(sent.fields["dueAt"]) if "dueAt" in sent.fields else None
        name = TimerName(sent.tenant, sent.fields["serviceCallId"])
        return self._model.command(TimerCommand(sent.type, name, b"", due_at), command_id, position)

    def mark_reached(self, now: int) -> None:
        """Mark timers as reached in the model. Assert that each may be reached at `now`."""
        for name, row in self._rows().items():
            timer = self._model.timers[name]
            if row["state"] == REACHED and timer.state != REACHED:
                assert timer.state == SCHEDULED, f"{name} was reached while it was {timer.state}"
                assert (timer.due_at or 0) <= now, f"{name} was reached early"
                timer.state = REACHED

    def check(self) -> None:
        """Assert that the table equals the model."""
        found = {
            name: (row["state"], Position(row["position_epoch"], row["position_sequence"]), row["due_at"])
            for name, row in self._rows().items()
        }
        assert found == {name: (each.state, each.position, each.due_at) for name, each in self._model.timers.items()}

    def check_finished(self) -> None:
        """Assert that no timer is still scheduled and that every reached timer has an event.

        A timer that was changed later may have more events.
        """
        events = [event for event in self._service.events() if event["type"] == "DueTimeReached"]
        reached = {name.call for name, timer in self._model.timers.items() if timer.state == REACHED}
        assert reached <= {event["payload"]["serviceCallId"] for event in events}
        assert len({event["id"] for event in events}) == len(events)
        assert all(timer.state != SCHEDULED for timer in self._model.timers.values())

    def _rows(self) -> dict[TimerName, Row]:
        return {
            TimerName(row["tenant_id"], row["service_call_id"]): row for row in self._service.rows("timer_schedules")
        }
