"""The slices of one instance put together: what they handle, what they answer, and the loops that do their work."""

from datetime import timedelta
from functools import partial
from typing import Protocol

from timer_service.app.storage import Storage
from timer_service.config import Config
from timer_service.core.broker import Broker
from timer_service.core.census import Census
from timer_service.core.consumer import Route
from timer_service.core.instruments import Instruments
from timer_service.core.lease import Lease, LeasedTable
from timer_service.core.loop import Loop, Worker
from timer_service.core.outbox import COUNTED as COUNTED_EVENTS
from timer_service.core.outbox import OUTBOX, stored_message
from timer_service.core.relay import Encode, Relay
from timer_service.core.retention import Delete, Retention
from timer_service.core.wakes import Wakes
from timer_service.events import handler as events_handler
from timer_service.events.queries import QUERIES as EVENT_QUERIES
from timer_service.needs import handler as needs_handler
from timer_service.needs.census import COUNTED as COUNTED_RUNS
from timer_service.needs.queries import QUERIES as RUN_QUERIES
from timer_service.needs.retention import delete_settled as delete_runs
from timer_service.needs.sweep import Sweep
from timer_service.signals import handler as signals_handler
from timer_service.signals.evaluation import Evaluation
from timer_service.signals.firings import COUNTED as COUNTED_SIGNALS
from timer_service.signals.firings import FIRINGS
from timer_service.signals.queries import QUERIES as SIGNAL_QUERIES
from timer_service.signals.retention import delete_settled as delete_signals
from timer_service.signals.worker import Firings
from timer_service.timers import handler as timers_handler
from timer_service.timers.queries import QUERIES as TIMER_QUERIES
from timer_service.timers.store import COUNTED as COUNTED_TIMERS
from timer_service.timers.store import TIMERS
from timer_service.timers.store import delete_settled as delete_timers
from timer_service.timers.worker import due_time_reached

_RETENTION_INTERVAL = timedelta(minutes=1)
_CENSUS_INTERVAL = timedelta(seconds=15)

QUERIES = (*TIMER_QUERIES, *SIGNAL_QUERIES, *RUN_QUERIES, *EVENT_QUERIES)


class Claimer(Protocol):
    """Holds claims while it works."""

    async def recover(self) -> None:
        """Take over those of a dead predecessor."""
        ...


def routes(config: Config, wakes: Wakes) -> list[Route]:
    """Return where commands go."""
    handle_signals = partial(signals_handler.handle, evaluating=config.signals_enabled)
    handle_needs = partial(needs_handler.handle, evaluating=config.needs_enabled)
    return [
        Route(timers_handler.PAYLOADS, timers_handler.handle, partial(wakes.wake, ["timers"])),
        Route(signals_handler.PAYLOADS, handle_signals, partial(wakes.wake, ["signals", "evaluation"])),
        Route(needs_handler.PAYLOADS, handle_needs, partial(wakes.wake, ["needs", "outbox"])),
        Route(events_handler.PAYLOADS, events_handler.handle, partial(wakes.wake, ["outbox"])),
    ]


class Workers:
    """The loops that fire what is due and look after the tables."""

    def __init__(self, config: Config, storage: Storage, broker: Broker, instruments: Instruments) -> None:
        self._config = config
        self._database = storage.database
        self._clock = storage.clock
        self._broker = broker
        self._instruments = instruments
        self._claimers: list[Claimer] = []
        self.loops: list[Loop] = []
        self._relay("timers", TIMERS, due_time_reached)
        outbox = self._relay("outbox", OUTBOX, stored_message)
        if config.signals_enabled:
            self._add_signals(outbox)
        if config.needs_enabled:
            self._loop("needs", Sweep(self._database, outbox.wake), config.polling_interval)
        self._retention("retention", delete_timers)
        self._retention("signals retention", delete_signals)
        self._retention("needs retention", delete_runs)
        census = Census(
            self._database,
            instruments,
            counted=[*COUNTED_TIMERS, *COUNTED_SIGNALS, *COUNTED_RUNS, *COUNTED_EVENTS],
            leased=[TIMERS, FIRINGS, OUTBOX],
        )
        self._loop("census", census, _CENSUS_INTERVAL)

    async def recover(self) -> None:
        """Take over the claims of a dead predecessor, where the database admits one process at a time."""
        for claimer in self._claimers:
            await claimer.recover()

    def _add_signals(self, outbox: Loop) -> None:
        firings = Firings(
            database=self._database,
            lease=Lease(FIRINGS, self._config.visibility_timeout),
            clock=self._clock,
            instruments=self._instruments,
            batch_size=self._config.batch_size,
            max_attempts=self._config.max_attempts,
            wake=outbox.wake,
        )
        self._claimers.append(firings)
        signals = self._loop("signals", firings, self._config.polling_interval)
        self._loop("evaluation", Evaluation(self._database, signals.wake), self._config.polling_interval)

    def _relay(self, name: str, table: LeasedTable, encode: Encode) -> Loop:
        relay = Relay(
            database=self._database,
            broker=self._broker,
            lease=Lease(table, self._config.visibility_timeout),
            encode=encode,
            clock=self._clock,
            instruments=self._instruments,
            batch_size=self._config.batch_size,
            max_attempts=self._config.max_attempts,
        )
        self._claimers.append(relay)
        return self._loop(name, relay, self._config.polling_interval)

    def _retention(self, name: str, delete: Delete) -> None:
        keep = timedelta(days=self._config.retention_days)
        self._loop(name, Retention(self._database, keep, delete), _RETENTION_INTERVAL)

    def _loop(self, name: str, worker: Worker, polling_interval: timedelta) -> Loop:
        loop = Loop(name, worker, clock=self._clock, polling_interval=polling_interval, instruments=self._instruments)
        self.loops.append(loop)
        return loop
