"""How commands reach the broker."""

from contextlib import AbstractAsyncContextManager

from timer_service.app import nats_login
from timer_service.client import TimerClient
from timer_service.config import Config


def open_client(config: Config) -> AbstractAsyncContextManager[TimerClient]:
    """Connect as the settings say. Outcomes and answers come to inboxes under TIMER_REPLY_PREFIX."""
    return TimerClient.connect(
        config.broker_url,
        subject_prefix=config.subject_prefix,
        inbox_prefix=config.reply_prefix.removesuffix("."),
        **nats_login(config).options(),
    )
