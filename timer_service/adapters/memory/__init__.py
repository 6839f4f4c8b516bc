"""A broker inside this process, for tests and for the simulation.

It delivers commands only when a test asks for them. A test can read everything that it stored and settled.
"""

from timer_service.adapters.memory.broker import FEATURES, MemoryBroker, Predicate, never

__all__ = ["FEATURES", "MemoryBroker", "Predicate", "never"]
