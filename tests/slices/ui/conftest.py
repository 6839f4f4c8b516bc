"""The operations page on an empty SQLite database."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.page import Page
from timer_service.adapters.sqlite import SqliteDatabase


@pytest.fixture
def page(sqlite: SqliteDatabase, clock: ManualClock) -> Page:
    return Page(sqlite, clock)
