"""Opens the service: database, schema, broker, and the checks between them."""

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from timer_service.adapters.embedded import PROGRAMS, embedded_server, free_port
from timer_service.adapters.tracing import Tracing
from timer_service.app.brokers import connect_broker
from timer_service.app.schema import bring_to_head
from timer_service.app.service import App
from timer_service.app.slices import QUERIES, SLICES
from timer_service.app.storage import open_storage
from timer_service.app.tasks import close_within
from timer_service.config import Config, load_config, unknown_settings
from timer_service.core.ports.health import worst
from timer_service.core.values.errors import StartError
from timer_service.dev_server import BrokerKind, read_dev_server
from timer_service.metrics import Metrics
from timer_service.schedules.messages import SkipReason
from timer_service.signals.firing_store import FIRINGS

_CLOSE_SECONDS = 3

DevApp = AbstractAsyncContextManager[tuple[App, Config, list[str]]]
"""The app of `dev`, its settings, and notes for its user."""


@asynccontextmanager
async def open_app(config: Config) -> AsyncIterator[App]:
    """Open database and broker, migrate the schema to head, and build the app. Raises `StartError` if that fails."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    _create_failure_series(metrics)
    async with open_storage(config, metrics) as storage:
        await bring_to_head(storage.database, auto=config.auto_migrate)
        broker = await connect_broker(config)
        try:
            app = App(config, storage, broker, metrics, registry, tracing=Tracing.of_process())
            metrics.watch(  # read at each scrape
                broker=lambda: broker.health.usable,
                database=lambda: worst(storage.database.read_health, storage.database.health).usable,
                flows=app.flows,
            )
            yield app
        finally:
            await close_within(_CLOSE_SECONDS, broker.close(), "broker")


@asynccontextmanager
async def open_dev_app(
    data_dir: Path, *, broker: BrokerKind | None = None, broker_port: int | None = None, http_port: int | None = None
) -> AsyncIterator[tuple[App, Config, list[str]]]:
    """Open the service with an embedded broker and all its files under `data_dir`.

    It uses this broker and these ports, or raises `StartError` if a port is taken. Without them, it uses those of its
    last start, or other ports if these are taken. Yields the app, its settings, and notes: ports that were taken, and
    unknown settings. If the broker ends, the app stops, and the end of the block raises `StartError`.
    """
    last = read_dev_server(data_dir)
    # Ignores the database in the environment: it may hold real timers.
    wanted = load_config(db_path=data_dir / "timers.db", database_url=None, database_url_file=None)
    last_http = wanted.http_port if last is None or "http_port" in wanted.model_fields_set else last.http_port
    http = free_port(http_port or last_http, wanted.http_host)
    if http_port not in {None, http}:
        raise StartError(f"port {http_port} is in use: name another one with --http-port, or leave the option out")
    kind = broker or (last.broker if last else BrokerKind.NATS)
    program = PROGRAMS[kind]
    last_port = last.broker_port if last and last.broker is kind else program.port
    wanted_port = broker_port or last_port
    embedded = embedded_server(program, data_dir / kind, wanted_port, or_other_port=broker_port is None)
    async with embedded as server:
        ports = ((program.label, wanted_port, urlsplit(server.url).port), ("HTTP", http_port or last_http, http))
        moved = [(what, port, used) for what, port, used in ports if port not in {0, used}]
        notes = [f"Port {port} is in use; {what} uses {used} instead." for what, port, used in moved]
        # The page is shown unless the environment forbids it: None is no answer.
        update = {"broker_url": server.url, "http_port": http, "ui_enabled": wanted.ui_enabled is not False}
        config = wanted.model_copy(update=update)
        async with open_app(config) as app:
            server.ended.add_done_callback(lambda _: app.stop())
            yield app, config, [*notes, *unknown_settings(os.environ)]


def _create_failure_series(metrics: Metrics) -> None:
    """Let the counters of failures begin at 0, for each message and table: a series that is missing cannot increase."""
    metrics.create_failure_series(
        commands=[payload.type for each in SLICES for payload in each.commands],
        queries=[query.name for query in QUERIES],
        requests=[request.name for each in SLICES for request in each.requests],
        # firings count like leased rows: they are retried and given up
        leased=[*(table.name for each in SLICES for table in each.leased), FIRINGS.name],
        due=[table.name for each in SLICES for table in each.due if table is not FIRINGS],
        skips=SkipReason,
    )
