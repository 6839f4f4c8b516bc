"""The broker port on NATS JetStream."""

from timer_service.adapters.nats.broker import NatsBroker
from timer_service.adapters.nats.connection import Login

__all__ = ["Login", "NatsBroker"]
