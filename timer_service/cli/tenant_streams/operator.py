"""Sets up the streams of tenants, as the operator."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.subjects import Subjects
from timer_service.app.login import nats_login
from timer_service.cli.tenant_streams.commands import separate_tenants as separate
from timer_service.cli.tenant_streams.events import stream_events as stream
from timer_service.config import Config

_UNSENT_BYTES = 1024 * 1024


async def separate_tenants(config: Config, tenants: Sequence[str]) -> list[str]:
    """Give each tenant a stream of its own, and return the tenants that had none. Raises `StartError`."""
    async with _operator(config) as client:
        return await separate(client, Subjects(config.subject_prefix), tenants)


async def stream_events(config: Config, tenants: Sequence[str]) -> Mapping[str, str]:
    """Let each tenant read its events from a stream of its own. Return the names of these. Raises `StartError`."""
    async with _operator(config) as client:
        return await stream(client, Subjects(config.subject_prefix), tenants)


@asynccontextmanager
async def _operator(config: Config) -> AsyncIterator[GuardedClient]:
    connection = Connection("timer-service tenants", unsent_bytes=_UNSENT_BYTES)
    await connection.open(config.broker_url, nats_login(config).options())
    try:
        yield connection.client
    finally:
        await connection.close()
