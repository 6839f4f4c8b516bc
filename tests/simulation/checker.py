"""Holds everything that the service commits against the models, as it happens."""

from collections.abc import Sequence

from tests.simulation import run_check, signal_check
from tests.simulation.run_model import RunsModel
from tests.simulation.service import Handled, Observer, Sent, Service
from tests.simulation.signal_model import SignalsModel
from tests.simulation.timer_check import TimersChecker
from timer_service.app.slices import SLICES
from timer_service.core.message import Position

_SLICE_OF = {payload.type: each.name for each in SLICES for payload in each.commands}


class Checker(Observer):
    """Plays a history; `in_order` says that every command is handled first in the order of the stream.

    Then the model of signals says exactly what must be. Otherwise rows and events of signals are checked by themselves:
    nothing fires without a cause, and nothing that has happened is missed.
    """

    def __init__(self, service: Service, history: Sequence[Sent], *, in_order: bool = True) -> None:
        self.service = service
        self.runs = RunsModel()
        self.signals = SignalsModel()
        self.timers = TimersChecker(service)
        self.firings = signal_check.FiringsSeen()
        self.outcomes: dict[Position, str] = {}
        """How each command ended when it was handled first."""
        self._in_order = in_order
        service.begin(self)
        self.positions = service.send(history)
        self._sent = dict(zip(self.positions, history, strict=True))

    # What the service commits

    def commands_committed(self, handled: Sequence[Handled], now: int) -> None:
        for each in handled:
            self._check_outcome(each, now)
            self.outcomes.setdefault(each.command.position, each.outcome)
        self.runs.commit()
        self._check()

    def _check_outcome(self, handled: Handled, now: int) -> None:
        command, outcome = handled
        sent = self._sent[command.position]
        match _SLICE_OF[sent.type]:
            case "runs":
                wanted = self.runs.command(sent.type, sent.payload, command.position, now)
            case "timers":
                wanted = self.timers.command(sent, command.position)
            case _ if not self._in_order or command.position in self.outcomes:
                return
            case _:
                wanted = self.signals.command(sent.type, sent.payload, command.position, command.id)
        assert outcome == wanted, f"{sent} at {command.position}: {outcome}, not {wanted}"

    def worker_committed(self, worker: str, now: int) -> None:
        match worker:
            case "sweep":
                run_check.follow_sweep(self.runs, self.service, now)
            case "timers":
                self.timers.follow(now)
            case "firings":
                fired = self.firings.newly_fired(self.service)
                signal_check.check_fired(self.service, fired)
                if self._in_order:
                    signal_check.follow_firings(self.signals, fired, now)
        self._check()

    def _check(self) -> None:
        run_check.check_runs(self.runs, self.service)
        self.timers.check()
        if self._in_order:
            signal_check.check_signals(self.signals, self.service)

    # What the test does

    def switch(self, slice_: str) -> None:
        """Switch a slice off or on; what was left while it was off is caught up with before anything else happens."""
        self.service.off ^= {slice_}
        self.runs.on = "runs" not in self.service.off
        self._settle()

    def finish(self) -> None:
        """Let everything happen that is left to do; then nothing may be missing."""
        for each in list(self.service.off):
            self.switch(each)
        self.deliver_the_rest()
        self._check_at_rest()
        while (at := self.service.next_at()) is not None and at < self.service.clock.now() + _FAR_MS:
            self.service.clock.set(max(at, self.service.clock.now() + 1))
            self.service.settle()
        self._check_at_rest()
        run_check.check_run_events(self.runs, self.service)
        signal_check.check_signal_events(self.service)
        self.timers.check_finished()

    def deliver_the_rest(self) -> None:
        """Deliver what was not settled, until it is."""
        self.service.let_on()
        while self.service.broker.unsettled:
            self.service.broker.redeliver()
            self.service.deliver(self.service.broker.waiting)
        assert self.outcomes.keys() == set(self.positions), "commands were lost"
        self._settle()

    def _settle(self) -> None:
        self.service.settle()
        if self.runs.on:  # also with runs of which nothing was left to evaluate, so that no sweep wrote them
            run_check.follow_sweep(self.runs, self.service, self.service.clock.now())

    def _check_at_rest(self) -> None:
        self._check()
        signal_check.check_nothing_missed(self.service)
        going = [run for run in self.runs.runs.values() if run.status == "running"]
        assert all(run.evaluated for run in going), "the sweep has not caught up"
        if self._in_order:
            assert not list(self.signals.missed(self.service.clock.now()))

    def check_retention(self) -> None:
        """Let retention delete what is over, and nothing else."""
        self.service.delete_settled()
        run_check.check_deleted(self.runs, self.service)
        signal_check.check_signals_deleted(self.service)


_FAR_MS = 9 * 60 * 1000  # farther than anything in a history, nearer than the next regular sweep
