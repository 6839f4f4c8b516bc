"""The databases of the scenarios."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.stores.postgres import PostgresStore, postgres_store
from benchmarks.stores.sqlite import sqlite_store
from benchmarks.stores.store import Store

STORES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Store]]] = {
    "sqlite": sqlite_store,
    "postgres": postgres_store,
}

__all__ = ["STORES", "PostgresStore", "Store"]
