"""The page in the app: it needs an optional package, and its loop takes samples."""

import sys

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.clock import ManualClock
from tests.harness.instance import Streams
from tests.harness.memory_broker import MemoryBroker
from tests.harness.wiring import make_parts
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.page import build_page
from timer_service.config import Config
from timer_service.core.values.errors import StartError
from timer_service.metrics import Metrics
from timer_service.ui.rejections import NewestRejections


def build(sqlite: SqliteDatabase) -> object:
    registry = CollectorRegistry()
    parts = make_parts(sqlite, MemoryBroker(), ManualClock(), Metrics(registry))
    return build_page(
        Config(), parts, Streams(), registry, flows=dict, needs=dict, loops=list, rejections=NewestRejections()
    )


async def test_jinja2_is_missing(sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jinja2, the service does not start with the page, and says what to install."""
    imports_it = ("jinja2", *(f"timer_service.ui.{name}" for name in ("routes", "pages", "views")))
    for name in [each for each in sys.modules if each.startswith(imports_it)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(StartError, match=r"TIMER_UI_ENABLED needs jinja2: pip install 'timer-service\[ui\]'"):
        build(sqlite)
