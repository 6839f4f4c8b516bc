"""The broker port on Redis or Valkey streams."""

from timer_service.adapters.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
