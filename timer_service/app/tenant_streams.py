"""Sets up a stream of commands for each tenant, as the operator."""

from collections.abc import Sequence

from timer_service.adapters.nats.connect import connect
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.nats.tenant_streams import separate_tenants as separate
from timer_service.app.login import nats_login
from timer_service.config import Config

_UNSENT_BYTES = 1024 * 1024


async def separate_tenants(config: Config, tenants: Sequence[str]) -> list[str]:
    """Give each tenant a stream of its own, and return the tenants that had none. Raises `StartError`."""
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
        return await separate(client, Subjects(config.subject_prefix), tenants)
    finally:
        await client.close()
