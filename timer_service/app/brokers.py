"""The broker of the service: the adapter that its URL names, and what an instance needs beside the port of the core."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Protocol

from timer_service.app.login import login_options, redis_tls, user_and_password
from timer_service.config import Config
from timer_service.core.due.loop import Worker
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.health import Health
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind
from timer_service.core.values.errors import StartError


class Streams(Worker, Protocol):
    """A worker that checks where the broker stores messages, and creates what is missing if it may."""

    @property
    def health(self) -> Mapping[Kind, Health]:
        """The health of the stream of each kind that is stored."""

    @property
    def keeps_events_for(self) -> timedelta | None:
        """How long events are kept; None: for ever."""

    def name(self, kind: Kind) -> str:
        """Return the name of the stream that stores a kind."""


class ServiceBroker(Broker, Protocol):
    """A broker with what only an instance of the service needs."""

    @property
    def streams(self) -> Streams:
        """The upkeep of the streams."""

    @property
    def reading(self) -> bool:
        """Whether its connections are read, or are being restored. If not, only a new process helps."""

    async def wait_lost(self) -> str:
        """Wait until a connection is closed for good. Return the reason."""

    async def close(self) -> None:
        """Send what is buffered, such as replies, and disconnect."""


async def connect_broker(config: Config) -> ServiceBroker:
    """Connect to the broker of TIMER_BROKER_URL. Raises `StartError` if it cannot be used."""
    try:
        broker = await _CONNECT[config.broker](config)
    except ModuleNotFoundError as error:
        extra = config.broker
        raise StartError(f"TIMER_BROKER_URL needs {error.name}: pip install 'timer-service[{extra}]'") from error
    limit = broker.max_message_bytes
    if limit < MAX_MESSAGE_BYTES:
        await broker.close()
        raise StartError(
            f"the broker (TIMER_BROKER_URL) accepts messages of at most {limit} bytes, but events may have "
            f"{MAX_MESSAGE_BYTES}: set max_payload of the NATS server and of the account to 1MB or more"
        )
    return broker


async def _connect_nats(config: Config) -> ServiceBroker:
    from timer_service.adapters.nats import NatsBroker  # noqa: PLC0415 - a service uses one broker

    return await NatsBroker.connect(
        config.broker_url,
        config.subject_prefix,
        login=partial(login_options, config),
        reply_prefix=config.reply_prefix,
        manage_streams=config.manage_streams,
        overlap=config.commands_overlap,
    )


async def _connect_redis(config: Config) -> ServiceBroker:
    from timer_service.adapters.redis import RedisBroker  # noqa: PLC0415 - an extra

    return await RedisBroker.connect(
        config.broker_url,
        config.subject_prefix,
        login=partial(user_and_password, config),
        tls=redis_tls(config),
        manage_streams=config.manage_streams,
        overlap=config.commands_overlap,
    )


async def _connect_rabbitmq(config: Config) -> ServiceBroker:
    from timer_service.adapters.rabbitmq import RabbitBroker  # noqa: PLC0415 - an extra

    return await RabbitBroker.connect(
        config.broker_url,
        config.subject_prefix,
        login=partial(login_options, config),
        manage_streams=config.manage_streams,
        overlap=config.commands_overlap,
    )


_CONNECT = {"nats": _connect_nats, "redis": _connect_redis, "rabbitmq": _connect_rabbitmq}
