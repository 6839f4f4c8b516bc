"""The database port on PostgreSQL, and the clock that all instances use there."""

from timer_service.adapters.postgres.clock import PostgresClock
from timer_service.adapters.postgres.database import PostgresDatabase

__all__ = ["PostgresClock", "PostgresDatabase"]
