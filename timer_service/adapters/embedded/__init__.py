"""A real broker as a child of this process, for `timer-service dev` and the tests."""

from collections.abc import Mapping

from timer_service.adapters.embedded.nats import NATS
from timer_service.adapters.embedded.rabbitmq import RABBITMQ
from timer_service.adapters.embedded.redis import REDIS
from timer_service.adapters.embedded.server import EmbeddedServer, Launch, Program, embedded_server, free_port
from timer_service.dev_server import BrokerKind

PROGRAMS: Mapping[BrokerKind, Program] = {
    BrokerKind.NATS: NATS,
    BrokerKind.REDIS: REDIS,
    BrokerKind.RABBITMQ: RABBITMQ,
}
"""The servers that `timer-service dev` can run."""

__all__ = [
    "NATS",
    "PROGRAMS",
    "RABBITMQ",
    "REDIS",
    "EmbeddedServer",
    "Launch",
    "Program",
    "embedded_server",
    "free_port",
]
