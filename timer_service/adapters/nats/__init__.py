"""NATS JetStream behind the broker port."""

from timer_service.adapters.nats.broker import NatsBroker

__all__ = ["NatsBroker"]
