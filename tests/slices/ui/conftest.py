"""The operations page on an empty SQLite database, and on one with rows of every kind."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness import page_data
from tests.harness.clock import NOW, ManualClock
from tests.harness.page import Page
from tests.harness.stores import open_sqlite
from timer_service.adapters.sqlite import SqliteDatabase


@pytest.fixture
def page(sqlite: SqliteDatabase, clock: ManualClock) -> Page:
    return Page(sqlite, clock)


@pytest.fixture(scope="session")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a SQLite file with rows of every kind."""
    path = tmp_path_factory.mktemp("page") / "timers.db"

    async def make() -> None:
        async with open_sqlite(path) as database:
            await page_data.fill(database, NOW)

    asyncio.run(make())
    return path


@pytest.fixture
async def filled(filled_file: Path, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Page]:
    """Yield the page on a copy of the file."""
    shutil.copy(filled_file, tmp_path / "filled.db")
    async with open_sqlite(tmp_path / "filled.db") as database:
        yield Page(database, clock)
