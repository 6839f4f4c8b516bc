"""The operations page in a browser: every reader can read it, and it runs nothing that a tenant wrote."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness import page_data
from tests.harness.browser import Browser, Tab, distinct_lines, require_chromium
from tests.harness.clock import NOW, ManualClock
from tests.harness.page import Page
from tests.harness.page_data import HOSTILE
from tests.harness.processes import NatsServer, Service
from tests.harness.stores import open_sqlite
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.http import serve_http
from timer_service.ui.links import link

CHECK = (Path(__file__).parents[1] / "harness" / "accessibility.js").read_text("utf-8")
ITEMS = {"timer": HOSTILE[0], "signal": HOSTILE[0], "run": "build", "schedule": HOSTILE[0], "workflow": "order-1"}
FILLED = [
    link(""),
    *(
        link(name, tenant="acme")
        for name in ("timers", "signals", "runs", "schedules", "workflows", "workers", "events", "parked")
    ),
    *(link(name, tenant="acme", id=id_) for name, id_ in ITEMS.items()),
    link("failed"),
    link("timers"),
    link("timers", tenant="many"),
    link("timers", tenant="a b"),
    link("nope"),
]
LONG = [link(name, tenant="acme", id=HOSTILE[8]) for name in ITEMS]
"""Pages of things with the longest id, which must fit on a phone."""
MANY = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, position_epoch, position_sequence, available_at
)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000)
SELECT 'many', 'call-' || n, 'Scheduled', :now + n, 'event-' || n, :now, 1, n, :now + n FROM numbers
"""
UPDATED = "Updated every 10 seconds.Pause updates"
PHONE = 360
LOOKS = [(1280, False), (1280, True), (PHONE, False)]
"""Widths, and whether the reader prefers dark colours."""


class Site(NamedTuple):
    """A served page and a tab of a browser."""

    url: str
    tab: Tab
    page: Page


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    require_chromium()
    async with Browser.open(tmp_path / "browser") as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a SQLite file with rows of every kind, 100,000 timers and a run of 200 jobs."""
    path = tmp_path_factory.mktemp("page") / "filled.db"

    async def make() -> None:
        async with open_sqlite(path) as database:
            await page_data.fill(database, NOW, jobs=200)
            async with database.transaction() as tx:
                await tx.execute(MANY, {"now": NOW})

    asyncio.run(make())
    return path


@pytest.fixture
async def filled(file: Path, tmp_path: Path, browser: Browser) -> AsyncIterator[Site]:
    shutil.copy(file, tmp_path / "filled.db")
    async with open_sqlite(tmp_path / "filled.db") as database:
        page = Page(database, ManualClock())
        await take_samples(page)
        async with serve_http(page.app, "127.0.0.1", 0) as server:
            yield Site(f"http://127.0.0.1:{server.port}", await browser.tab(), page)


async def take_samples(page: Page) -> None:
    """Take the samples of an hour with timers, failures and a fault."""
    now = page.clock.now()
    for number in range(361):
        for _ in range(number % 17):
            page.metrics.fired_late("timer_schedules", 0.002 * (1 + number % 5))
        page.metrics.counted("timer_schedules", "Scheduled", 100_000 + number)
        page.metrics.overdue("timer_schedules", number % 3, 0.5)
        if number % 100 == 0:
            page.metrics.buried("timer_schedules", 1)
            page.metrics.dead_letter_stored("INVALID_PAYLOAD")
        await page.samples.tick(now - 3_600_000 + number * 10_000)
    page.health["events"] = Health.down(f"stream {HOSTILE[0]} is missing")


async def check(site: Site, path: str) -> None:
    """Open a page and check that it is complete, and that every reader can read it."""
    await site.tab.visit(f"{site.url}{path}")
    assert distinct_lines(await site.tab.screenshot()) > 60, path
    assert await site.tab.run(CHECK) == [], path


@pytest.mark.slow
async def test_filled_pages(filled: Site) -> None:
    """Each page with hostile ids, 100,000 timers and a run of 200 jobs can be read. No script of a tenant runs."""
    for width, dark in LOOKS:
        await filled.tab.look(width=width, dark=dark)
        for path in FILLED + (LONG if width == PHONE else []):
            await check(filled, path)
    expected = [each for each in filled.tab.errors if "status of 400" in each or "status of 404" in each]
    assert len(expected) == 2 * len(LOOKS)
    assert [each for each in filled.tab.errors if each not in expected] == []


@pytest.mark.slow
async def test_live_updates(filled: Site) -> None:
    """The overview updates itself, keeps the focus of the reader, and can be paused."""
    await filled.tab.before_scripts("const real = setInterval; window.setInterval = (step) => real(step, 50)")
    await filled.tab.look(width=1280)
    await filled.tab.visit(f"{filled.url}/ui/")
    assert "needs attention" in await filled.tab.run("document.querySelector('.lead').textContent")
    assert await filled.tab.run("document.getElementById('updates').textContent") == UPDATED
    await filled.tab.run("document.querySelector('#updates button').click()")
    assert "paused" in await filled.tab.run("document.getElementById('updates').textContent")
    filled.page.health["events"] = HEALTHY
    await filled.tab.run("document.querySelector('#updates button').click()")
    await filled.tab.run("document.querySelector('.scroll').focus()")
    async with asyncio.timeout(40):
        while "healthy" not in await filled.tab.run("document.querySelector('.lead').textContent"):
            await filled.tab.run("new Promise(requestAnimationFrame).then(() => 0)")
    assert await filled.tab.run("document.activeElement.className") == "scroll"
    assert filled.tab.errors == []


@pytest.mark.slow
async def test_service(tmp_path: Path, broker: NatsServer) -> None:
    """The service serves the page if the settings say so, with its own health, and only then."""
    async with Service(tmp_path / "on", broker.url, TIMER_UI_ENABLED="true") as service:
        status, text = await service.page("/ui/")
        assert status == 200
        for shown in ("healthy", "broker", "database writes", "timers-retention", "sqlite"):
            assert shown in text
        async with asyncio.timeout(30):
            while "The first numbers appear" in text:
                _, text = await service.page("/ui/")
        assert (await service.page("/metrics"))[0] == 200
        assert "ui/" not in service.log.read_text()
    async with Service(tmp_path / "off", broker.url, TIMER_SUBJECT_PREFIX="other") as service:
        assert (await service.page("/ui/"))[0] == 404
