"""The database port on SQLite."""

from timer_service.adapters.sqlite.database import SqliteDatabase

__all__ = ["SqliteDatabase"]
