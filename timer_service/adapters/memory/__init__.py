"""A broker inside this process, for tests and for the simulation. A test can read everything that it stored."""

from timer_service.adapters.memory.broker import FEATURES, MemoryBroker, MemoryRequests, Predicate, never

__all__ = ["FEATURES", "MemoryBroker", "MemoryRequests", "Predicate", "never"]
