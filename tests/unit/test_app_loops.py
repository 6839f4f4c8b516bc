"""The loops of an instance."""

import re

import pytest
from prometheus_client import CollectorRegistry

from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES, Workers
from timer_service.app.storage import Storage
from timer_service.config import Config
from timer_service.core.clock import SystemClock
from timer_service.core.health import OutageLog
from timer_service.metrics import Metrics


@pytest.fixture
def loop_names(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> list[str]:
    storage = Storage(sqlite, SystemClock())
    workers = Workers(Config(), storage, memory_broker, Metrics(CollectorRegistry()), OutageLog())
    return [loop.name for loop in workers.loops]


def test_loop_names(loop_names: list[str]) -> None:
    """A loop's name is unique and has no spaces: it is a label of metrics and a token of subjects."""
    assert len(loop_names) == len(set(loop_names))
    assert [name for name in loop_names if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)] == []


def test_wakes_name_loops(loop_names: list[str]) -> None:
    """A slice wakes only loops that exist."""
    assert {name for each in SLICES for name in each.wakes} <= set(loop_names)
