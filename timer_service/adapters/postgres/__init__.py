"""PostgreSQL behind the database port, and its clock as the one that all instances go by."""

from timer_service.adapters.postgres.clock import PostgresClock
from timer_service.adapters.postgres.database import PostgresDatabase

__all__ = ["PostgresClock", "PostgresDatabase"]
