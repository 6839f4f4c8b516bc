"""Sets up the streams of tenants, as the operator."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from timer_service.adapters.nats.connect import connect
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
    errors: list[str] = []

    async def remember(error: Exception) -> None:
        errors.append(str(error))

    client = await connect(
        GuardedClient,
        config.broker_url,
        name="timer-service tenants",
        pending_size=_UNSENT_BYTES,
        last_error=lambda: errors[-1] if errors else "",
        error_cb=remember,
        **nats_login(config).options(),
    )
    try:
        yield client
    finally:
        await client.close()
