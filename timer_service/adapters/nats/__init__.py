"""The broker port on NATS JetStream."""

from timer_service.adapters.nats.broker import NatsBroker
from timer_service.adapters.nats.login import Login

__all__ = ["Login", "NatsBroker"]
