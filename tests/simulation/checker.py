"""The comparison of the service with the models, after each of its commits."""

from collections import Counter
from collections.abc import Sequence

from tests.harness.clock import NOW
from tests.simulation import run_check, signal_check
from tests.simulation.parked_check import ParkedChecker
from tests.simulation.run_model import RunsModel
from tests.simulation.schedule_check import SchedulesChecker
from tests.simulation.service import INSTANCES, VISIBILITY_TIMEOUT, CommitObserver, Handled, SentCommand, Service
from tests.simulation.signal_model import SignalsModel
from tests.simulation.timer_check import TimersChecker
from timer_service.app.slices import SLICES

_SLICE_OF = {payload.type: each.name for each in SLICES for payload in each.commands}


class Checker(CommitObserver):
    """An observer that compares one history with the models of all slices.

    The models get the commands of a tenant in the order of the log, because `LogLedger` has asserted this order.
    """

    def __init__(self, service: Service, history: Sequence[SentCommand] = (), *, at: int = NOW) -> None:
        """`at`: when the history begins."""
        self.service = service
        self.runs = RunsModel()
        self.signals = SignalsModel()
        self.timers = TimersChecker(service)
        self.schedules = SchedulesChecker(service)
        self.parked = ParkedChecker(service)
        self.firings = signal_check.FiredFirings()
        self._sent: dict[str, tuple[SentCommand, int]] = {}
        """The commands and when they were sent, by their ids."""
        service.begin(self, at)
        for instance in range(INSTANCES):  # the commands are sent after the start, so schedules do not wait for them
            service.tick("schedules", instance)
        self.send(history)

    def send(self, history: Sequence[SentCommand]) -> None:
        """Append commands to the log at the current time."""
        now = self.service.clock.now()
        self._sent |= {command: (sent, now) for command, sent in zip(self.service.send(history), history, strict=True)}

    # Commits of the service

    def commands_committed(self, handled: Sequence[Handled], now: int) -> None:
        for each in handled:
            self._check_outcome(each, now)
        self.runs.commit()
        if any(_SLICE_OF[each.command.payload.type] == "schedules" for each in handled):
            self.schedules.check()
        self._check()

    def _check_outcome(self, handled: Handled, now: int) -> None:
        command, outcome = handled.command, handled.outcome
        sent, sent_at = self._sent[command.id]
        match _SLICE_OF[sent.type]:
            case "runs":
                wanted = self.runs.command(sent.type, sent.payload, command.position, now)
            case "timers":
                wanted = self.timers.command(sent, command.id, command.position)
            case "schedules":
                wanted = self.schedules.command(sent, command, now, sent_at)
            case "events":
                wanted = self.parked.command(sent)
            case _:
                wanted = self.signals.command(sent.type, sent.payload, command.position, command.id)
        assert outcome == wanted, f"{sent} at {command.position}: {outcome}, not {wanted}"

    def worker_committed(self, worker: str, now: int, began_at: int) -> None:
        match worker:
            case "schedules":
                self.schedules.pass_committed(began_at)
                self.schedules.check()
            case "backfills":
                self.schedules.portions_committed(began_at)
                self.schedules.check()
            case "sweep":
                run_check.follow_sweep(self.runs, self.service, now)
            case "timers":
                self.timers.mark_reached(now)
            case "firings":
                fired = self.firings.read_new(self.service)
                signal_check.check_fired(self.service, fired)
                signal_check.apply_firings(self.signals, fired, now)
        self._check()

    def started(self) -> None:
        self.schedules.hold_back()

    def _check(self) -> None:
        run_check.check_runs(self.runs, self.service)
        self.timers.check()
        self.parked.check()
        signal_check.check_signals(self.signals, self.service)

    # Steps of the test

    def toggle(self, slice_: str) -> None:
        """Disable or enable a slice, then let the workers do the deferred work."""
        self.service.disabled ^= {slice_}
        self.runs.on = "runs" not in self.service.disabled
        self._settle()

    def finish(self) -> None:
        """Let the service do all remaining work, then assert that the result is complete."""
        for each in list(self.service.disabled):
            self.toggle(each)
        self.read_all()
        if self.service.has_crashed:
            self.service.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds() + 1)
            self._settle()
        self._check_idle()
        for _ in range(_INSTANTS_AT_END):
            if (at := self.service.next_at()) is None or at >= self.service.clock.now() + _FAR_MS:
                break
            self.service.clock.set(max(at, self.service.clock.now() + 1))
            self.service.settle()
        else:
            raise AssertionError("the workers wait for something that does not come")
        for _ in range(_SLOTS_AT_END):
            if (due := self.schedules.next_due()) is not None:
                self.service.clock.set(max(due, self.service.clock.now()))
                self.service.settle("schedules", "outbox")
        self._check_idle()
        run_check.check_run_events(self.runs, self.service)
        self.schedules.check_events()
        signal_check.check_signal_events(self.service)
        self.timers.check_finished()
        self.parked.check_events()
        rejected = Counter(
            event["payload"]["commandId"] for event in self.service.events() if event["type"] == "CommandRejected"
        )
        assert rejected == Counter(self.service.ledger.letters.keys()), "there is not one event for each dead letter"

    def read_all(self) -> None:
        """Let the service apply all commands that are left, and run the workers."""
        self.service.start_broker()
        self.service.read_all()
        self._settle()

    def _settle(self) -> None:
        self.service.settle()
        if self.runs.on:  # the sweep skips runs without deferred work, but the model must mark them evaluated
            run_check.follow_sweep(self.runs, self.service, self.service.clock.now())

    def _check_idle(self) -> None:
        self._check()
        signal_check.check_nothing_missed(self.service)
        self.schedules.check_idle()
        running = [run for run in self.runs.runs.values() if run.status == "running"]
        assert all(run.evaluated for run in running), "the sweep did not do the deferred evaluations"
        assert not list(self.signals.missed(self.service.clock.now()))

    def check_retention(self) -> None:
        """Run retention and assert that it deletes exactly the settled rows."""
        self.service.delete_settled()
        run_check.check_deleted(self.runs, self.service)
        signal_check.check_signals_deleted(self.service)
        self.schedules.check_deleted()
        self.parked.check_deleted()


_SLOTS_AT_END = 3
_INSTANTS_AT_END = 500
_FAR_MS = 9 * 60 * 1000  # later than every instant in a history, earlier than the next regular sweep
