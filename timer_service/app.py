"""COMPOSITION ROOT: builds database, broker, slices and HTTP from Config, runs and stops them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from timer_service.adapters.embedded import embedded_nats, free_port
from timer_service.adapters.migrations import Migration, migrate, pending_migrations, read_migrations
from timer_service.adapters.nats import Login, NatsBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.config import Config, load_config
from timer_service.core.census import Census
from timer_service.core.clock import Clock, SystemClock
from timer_service.core.consumer import Consumer, Route
from timer_service.core.errors import StartError
from timer_service.core.lease import Lease, LeasedTable
from timer_service.core.loop import Loop, Worker
from timer_service.core.outbox import COUNTED as COUNTED_EVENTS
from timer_service.core.outbox import OUTBOX, stored_message
from timer_service.core.query import Queries
from timer_service.core.relay import Encode, Relay
from timer_service.core.retention import Delete, Retention
from timer_service.http import http_app, serve_http
from timer_service.metrics import Metrics
from timer_service.shipped import shipped
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

log = logging.getLogger(__name__)

_NATS_PORT = 4222
_RETENTION_INTERVAL = timedelta(minutes=1)
_CENSUS_INTERVAL = timedelta(seconds=15)


class App:
    """The running service."""

    def __init__(self, config: Config, database: SqliteDatabase, broker: NatsBroker, clock: Clock) -> None:
        self._config = config
        self._database = database
        self._broker = broker
        self._registry = CollectorRegistry()
        metrics = Metrics(self._registry)
        metrics.watch_broker(lambda: broker.trouble is None)

        def relay(table: LeasedTable, encode: Encode) -> Relay:
            return Relay(
                database=database,
                broker=broker,
                lease=Lease(table, config.visibility_timeout),
                encode=encode,
                clock=clock,
                instruments=metrics,
                batch_size=config.batch_size,
                max_attempts=config.max_attempts,
            )

        def loop(name: str, worker: Worker, polling_interval: timedelta = config.polling_interval) -> Loop:
            return Loop(name, worker, clock=clock, polling_interval=polling_interval, instruments=metrics)

        def retention(delete: Delete) -> Retention:
            return Retention(database, timedelta(days=config.retention_days), delete)

        census = Census(
            database,
            metrics,
            counted=[*COUNTED_TIMERS, *COUNTED_SIGNALS, *COUNTED_EVENTS],
            leased=[TIMERS, FIRINGS, OUTBOX],
        )
        timers, outbox = relay(TIMERS, due_time_reached), relay(OUTBOX, stored_message)
        self._timers, outbox_loop = loop("timers", timers), loop("outbox", outbox)
        firings = Firings(
            database=database,
            lease=Lease(FIRINGS, config.visibility_timeout),
            clock=clock,
            instruments=metrics,
            batch_size=config.batch_size,
            max_attempts=config.max_attempts,
            wake=outbox_loop.wake,
        )
        signals = loop("signals", firings)
        evaluation = loop("evaluation", Evaluation(database, signals.wake))
        self._claimers = (timers, outbox, firings)
        self._loops = (
            self._timers,
            outbox_loop,
            *((signals, evaluation) if config.signals_enabled else ()),
            loop("retention", retention(delete_timers), _RETENTION_INTERVAL),
            loop("signals retention", retention(delete_signals), _RETENTION_INTERVAL),
            loop("census", census, _CENSUS_INTERVAL),
        )

        def wake_signals(at: int) -> None:
            signals.wake(at)
            evaluation.wake(at)

        handle_signals = partial(signals_handler.handle, evaluating=config.signals_enabled)
        self._consumer = Consumer(
            database=database,
            broker=broker,
            routes=[
                Route(timers_handler.PAYLOADS, timers_handler.handle, self._timers.wake),
                Route(signals_handler.PAYLOADS, handle_signals, wake_signals),
            ],
            clock=clock,
            instruments=metrics,
            batch_size=config.batch_size,
            reply_prefix=config.reply_prefix,
        )
        self._queries = Queries(database, clock, [*TIMER_QUERIES, *SIGNAL_QUERIES])
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Drain and end `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped or until a part fails for good, then drain within the shutdown timeout."""
        for claimer in self._claimers:
            await claimer.recover()
        await self._broker.serve_queries(self._queries.names, self._queries.answer)
        subscription = await self._broker.subscribe()
        pages = http_app(self._registry, troubles=self._troubles, stalled=self._stalled)
        async with serve_http(pages, self._config.http_host, self._config.http_port) as port:
            consuming = asyncio.create_task(self._consumer.run(subscription), name="consumer")
            ticking = [asyncio.create_task(loop.run(), name=loop.name) for loop in self._loops]
            asked = asyncio.create_task(self._stopping.wait(), name="asked to")
            lost = asyncio.create_task(self._broker.wait_lost(), name="broker lost")
            log.info("serving", extra={"http": f"http://{self._config.http_host}:{port}"})
            ended, _ = await asyncio.wait([consuming, *ticking, asked, lost], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            log.info("draining", extra={"because": sorted(task.get_name() for task in ended)})
            for loop in self._loops:
                loop.stop()
            await self._drain(subscription.close(), consuming, *ticking)
            asked.cancel()
            lost.cancel()
        if lost in ended:
            raise StartError(f"the connection to the broker was closed for good: {lost.result()}")

    async def _drain(self, closing: Coroutine[Any, Any, None], *tasks: asyncio.Task[None]) -> None:
        """Let what is under way end by itself; what the timeout cuts off is done again after a restart."""
        everything = [asyncio.create_task(closing), *tasks]
        _, late = await asyncio.wait(everything, timeout=self._config.shutdown_timeout.total_seconds())
        for task in late:
            log.warning("not drained in time", extra={"task": task.get_name()})
            task.cancel()
        for result in await asyncio.gather(*everything, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _troubles(self) -> Mapping[str, str | None]:
        return {
            "broker": self._broker.trouble or self._broker.denied,
            "database": self._database.trouble,
            "service": "draining" if self._stopping.is_set() else None,
        }

    def _stalled(self) -> list[str]:
        return [loop.name for loop in self._loops if loop.stalled]


@asynccontextmanager
async def open_app(config: Config) -> AsyncIterator[App]:
    """Open the database and the broker, bring the schema to head. Raises `StartError` with what to mend."""
    if config.role != "all":
        raise StartError(
            f"TIMER_ROLE={config.role} needs a database that processes can share; SQLite is for one: use all"
        )
    async with _open_database(config) as database:
        await _bring_to_head(database, auto=config.auto_migrate)
        broker = await NatsBroker.connect(
            config.broker_url,
            config.subject_prefix,
            login=nats_login(config),
            reply_prefix=config.reply_prefix,
            manage_streams=config.manage_streams,
        )
        try:
            _check_retention(config, broker)
            yield App(config, database, broker, SystemClock())
        finally:
            await broker.close()


def nats_login(config: Config) -> Login:
    """Return how to authenticate at NATS."""
    return Login(
        user=config.nats_user,
        password=_text(config.nats_password or config.nats_password_file),
        token=_text(config.nats_token or config.nats_token_file),
        nkey_seed=_text(config.nats_nkey_seed or config.nats_nkey_seed_file),
        credentials=config.nats_credentials,
        tls_ca=config.nats_tls_ca,
        tls_cert=config.nats_tls_cert,
        tls_key=config.nats_tls_key,
    )


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


@asynccontextmanager
async def open_dev_app(data_dir: Path) -> AsyncIterator[tuple[App, Config, list[str]]]:
    """Open the service with an embedded broker and all its files under `data_dir`.

    Yields the app, the settings it came to, and what a person should know of them (ports that were taken).
    """
    wanted = load_config(db_path=data_dir / "timers.db")
    http_port = free_port(wanted.http_port, wanted.http_host)
    nats_port = free_port(_NATS_PORT)
    notes = [
        f"Port {port} is taken; {what} uses {free} instead."
        for what, port, free in (("NATS", _NATS_PORT, nats_port), ("HTTP", wanted.http_port, http_port))
        if port != free
    ]
    async with embedded_nats(data_dir / "nats", nats_port) as url:
        config = wanted.model_copy(update={"broker_url": url, "http_port": http_port})
        async with open_app(config) as app:
            yield app, config, notes


@asynccontextmanager
async def _open_database(config: Config) -> AsyncIterator[SqliteDatabase]:
    database = await SqliteDatabase.open(config.db_path)
    try:
        yield database
    finally:
        await database.close()


def migrations() -> list[Migration]:
    """Return the migrations this version ships."""
    return read_migrations(shipped("migrations"))


async def apply_migrations(config: Config) -> list[Migration]:
    """Bring the configured database to head; return what was applied."""
    async with _open_database(config) as database:
        return await migrate(database, migrations())


async def unapplied_migrations(config: Config) -> list[Migration]:
    """Return what the configured database lacks."""
    async with _open_database(config) as database:
        return await pending_migrations(database, migrations())


def _check_retention(config: Config, broker: NatsBroker) -> None:
    kept = broker.commands_kept
    if kept is None or kept > timedelta(days=config.retention_days):
        raise StartError(
            f"the broker keeps commands for {kept or 'ever'}, longer than TIMER_RETENTION_DAYS="
            f"{config.retention_days:g}: one that is delivered again could fire a timer that was deleted. "
            "Limit the age of the command stream's messages, or keep timers longer."
        )


async def _bring_to_head(database: SqliteDatabase, *, auto: bool) -> None:
    if auto:
        for applied in await migrate(database, migrations()):
            log.info("migrated", extra={"migration": applied.name})
    elif pending := await pending_migrations(database, migrations()):
        raise StartError(
            f"the schema lacks {', '.join(each.name for each in pending)}, and TIMER_AUTO_MIGRATE is off: "
            "run `timer-service migrate up`"
        )
