"""Opens the service: database, schema, broker, and the checks between them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from timer_service.adapters.embedded import embedded_nats, free_port
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.tracing import Tracing
from timer_service.app.login import nats_login
from timer_service.app.schema import bring_to_head
from timer_service.app.service import App
from timer_service.app.slices import QUERIES, SLICES
from timer_service.app.storage import open_storage
from timer_service.app.tasks import close_within
from timer_service.config import Config, load_config, unknown_settings
from timer_service.core.ports.health import worst
from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.errors import StartError
from timer_service.metrics import Metrics
from timer_service.schedules.messages import SkipReason
from timer_service.signals.firing_store import FIRINGS

_NATS_PORT = 4222
_CLOSE_SECONDS = 3


@asynccontextmanager
async def open_app(config: Config) -> AsyncIterator[App]:
    """Open database and broker, migrate the schema to head, and build the app. Raises `StartError` if that fails."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    _create_failure_series(metrics)
    async with open_storage(config, metrics) as storage:
        await bring_to_head(storage.database, auto=config.auto_migrate)
        broker = await NatsBroker.connect(
            config.broker_url,
            config.subject_prefix,
            login=nats_login(config),
            reply_prefix=config.reply_prefix,
            manage_streams=config.manage_streams,
            overlap=config.commands_overlap,
        )
        try:
            _check_message_size(broker)
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
async def open_dev_app(data_dir: Path) -> AsyncIterator[tuple[App, Config, list[str]]]:
    """Open the service with an embedded broker and all its files under `data_dir`.

    Yields the app, its settings, and notes: ports that were in use, and unknown settings.
    """
    # Ignores the database in the environment: it may hold real timers.
    wanted = load_config(db_path=data_dir / "timers.db", database_url=None, database_url_file=None)
    http_port = free_port(wanted.http_port, wanted.http_host)
    nats_port = free_port(_NATS_PORT)
    ports = (("NATS", _NATS_PORT, nats_port), ("HTTP", wanted.http_port, http_port))
    notes = [f"Port {port} is in use; {what} uses {free} instead." for what, port, free in ports if port != free]
    notes += unknown_settings(os.environ)
    async with embedded_nats(data_dir / "nats", nats_port) as url:
        # The page is shown unless the environment forbids it: None is no answer.
        update = {"broker_url": url, "http_port": http_port, "ui_enabled": wanted.ui_enabled is not False}
        config = wanted.model_copy(update=update)
        async with open_app(config) as app:
            yield app, config, notes


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


def _check_message_size(broker: NatsBroker) -> None:
    """Raise `StartError` if the broker does not accept the largest event."""
    limit = broker.features.max_message_bytes
    if limit < MAX_MESSAGE_BYTES:
        raise StartError(
            f"the broker (TIMER_BROKER_URL) accepts messages of at most {limit} bytes, but events may have "
            f"{MAX_MESSAGE_BYTES}: set max_payload of the NATS server and of the account to 1MB or more"
        )
