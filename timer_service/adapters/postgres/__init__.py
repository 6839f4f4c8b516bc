"""The adapter of the database port for PostgreSQL, and the clock that all its instances use."""

from timer_service.adapters.postgres.clock import PostgresClock
from timer_service.adapters.postgres.database import PostgresDatabase

__all__ = ["PostgresClock", "PostgresDatabase"]
