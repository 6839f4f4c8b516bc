"""SQLite behind the database port."""

from timer_service.adapters.sqlite.database import SqliteDatabase

__all__ = ["SqliteDatabase"]
