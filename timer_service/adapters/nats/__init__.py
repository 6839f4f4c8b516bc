"""NATS JetStream behind the broker port."""

from timer_service.adapters.nats.broker import NatsBroker
from timer_service.adapters.nats.login import Login

__all__ = ["Login", "NatsBroker"]
