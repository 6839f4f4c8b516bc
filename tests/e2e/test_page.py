"""The operations page in a browser: every reader can read it, and it runs nothing that a tenant wrote."""

import asyncio
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness import page_data
from tests.harness.browser import Browser, Tab, distinct_lines, require_chromium
from tests.harness.cli import Cli
from tests.harness.clock import NOW, ManualClock
from tests.harness.node import install_packages
from tests.harness.page import Page
from tests.harness.page_data import HOSTILE
from tests.harness.processes import NatsServer, Service
from tests.harness.stores import open_sqlite
from timer_service.client import TimerClient, TimerServiceError
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.http import serve_http
from timer_service.ui.links import link

AXE = "axe-core@4.14.1"
VIOLATIONS = """
axe.run().then((found) => found.violations.flatMap((each) => each.nodes.map((node) => `${each.help}: ${node.html}`)))
"""
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
    link("timers", tenant="acme", prefix="x", correlation="x"),
    link("search", id="x"),
    link("timers"),
    link("workers"),
    link("timers", tenant="many"),
    link("timers", tenant="a b"),
    link("nope"),
]
LONG = [*(link(name, tenant="acme", id=HOSTILE[8]) for name in ITEMS), link("timers", tenant="x" * 64)]
"""Pages of things with the longest id, and of the longest tenant, which must fit on a phone."""
MANY = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, position_epoch, position_sequence, available_at
)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000)
SELECT 'many', 'call-' || n, 'Scheduled', :now + n, 'event-' || n, :now, 1, n, :now + n FROM numbers
"""
GIVE_UP = """
UPDATE timer_schedules SET state = 'Failed', available_at = NULL, attempt = 20, last_error = 'the stream is full'
WHERE service_call_id IN ('call-0', 'call-1')
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
    async with serve(tmp_path / "filled.db", browser) as site:
        await take_samples(site.page)
        yield site


@asynccontextmanager
async def serve(path: Path, browser: Browser) -> AsyncIterator[Site]:
    """Serve the page on a SQLite file."""
    async with open_sqlite(path) as database:
        page = Page(database, ManualClock())
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
async def test_axe(filled: Site, tmp_path: Path, browser: Browser) -> None:
    """axe-core finds no fault on any page, with rows and without, in light and in dark colours."""
    await asyncio.to_thread(install_packages, tmp_path, AXE)
    axe = (tmp_path / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    async with serve(tmp_path / "empty.db", browser) as empty:
        for site, paths in ((filled, FILLED), (empty, [each for each in FILLED if "&id=" not in each])):
            for dark in (False, True):
                await site.tab.look(width=1280, dark=dark)
                for path in paths:
                    await site.tab.visit(f"{site.url}{path}")
                    await site.tab.run(f"{axe};0")
                    assert await site.tab.run(VIOLATIONS) == [], path


@pytest.mark.slow
async def test_navigation_fits(filled: Site) -> None:
    """On a tablet or a computer, each page of the navigation can be seen without scrolling."""
    for width in range(660, 1260, 40):
        await filled.tab.look(width=width)
        await filled.tab.visit(f"{filled.url}/ui/workflows?tenant=acme")
        hidden = "(nav => nav.scrollWidth - nav.clientWidth)(document.querySelector('.bar nav'))"
        assert await filled.tab.run(hidden) == 0, width


@pytest.mark.slow
async def test_live_updates(filled: Site) -> None:
    """The overview updates itself, keeps the focus of the reader and what is unfolded, and can be paused."""
    await filled.tab.before_scripts("const real = setInterval; window.setInterval = (step) => real(step, 50)")
    await filled.tab.look(width=1280)
    await filled.tab.visit(f"{filled.url}/ui/")
    assert "needs attention" in await filled.tab.run("document.querySelector('.verdict').textContent")
    assert await filled.tab.run("document.getElementById('updates').textContent") == UPDATED
    await filled.tab.run("document.querySelector('#updates button').click()")
    assert "paused" in await filled.tab.run("document.getElementById('updates').textContent")
    filled.page.health["events"] = HEALTHY
    await filled.tab.run("document.querySelector('#updates button').click()")
    await filled.tab.run("document.querySelector('details').open = true")
    await filled.tab.run("document.querySelector('.scroll').focus()")
    await until(filled.tab, "healthy", ".verdict")
    assert await filled.tab.run("document.activeElement.className") == "scroll"
    assert await filled.tab.run("document.querySelector('details').open")
    assert filled.tab.errors == []


async def until(tab: Tab, text: str, place: str) -> None:
    """Wait until a part of the page has a text."""
    async with asyncio.timeout(40):
        while text not in await tab.run(f"document.querySelector({place!r}).textContent"):
            await tab.run("new Promise(requestAnimationFrame).then(() => 0)")


@pytest.mark.slow
async def test_outage(filled: Site) -> None:
    """If the service does not answer, the verdict says so, also while the reader uses a link, until it answers."""
    filled.page.health["events"] = HEALTHY
    tab = filled.tab
    await tab.before_scripts("const real = setInterval; window.setInterval = (step) => real(step, 50)")
    await tab.send("Network.enable")
    away = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    for script in ("0", "document.querySelector('main a').focus()"):
        await tab.visit(f"{filled.url}/ui/")
        assert "healthy" in await tab.run("document.querySelector('.verdict').textContent")
        await tab.run(script)
        await tab.send("Network.emulateNetworkConditions", offline=True, **away)
        await until(tab, "The service does not answer. This page is from ", ".verdict")
        assert "healthy" not in await tab.run("document.querySelector('main').textContent")
        await tab.send("Network.emulateNetworkConditions", offline=False, **away)
        await until(tab, "healthy", ".verdict")
    assert await tab.run("document.activeElement.matches('main a')")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "end"),
    [
        ("document.querySelector('main a').focus()", "document.activeElement.blur()"),
        ("getSelection().selectAllChildren(document.querySelector('h1'))", "getSelection().removeAllRanges()"),
    ],
)
async def test_updates_wait_for_the_reader(filled: Site, use: str, end: str) -> None:
    """Updates pause while the reader uses a link or a selection. The footer says so, and they resume at the end."""
    tab = filled.tab
    await tab.before_scripts("window.setInterval = (step) => { window.tick = step; }")
    await tab.visit(f"{filled.url}/ui/")
    await tab.run(use)
    filled.page.health["events"] = HEALTHY
    await tab.run("tick()")
    await until(tab, "Updates pause while", "#updates")
    assert "needs attention" in await tab.run("document.querySelector('.verdict').textContent")
    await tab.run(end)
    await until(tab, "healthy", ".verdict")
    assert await tab.run("document.getElementById('updates').textContent") == UPDATED
    assert tab.errors == []


@pytest.mark.slow
async def test_service(tmp_path: Path, broker: NatsServer) -> None:
    """The service serves the page if the settings say so, with its own health, and only then."""
    async with Service(tmp_path / "on", broker.url, TIMER_UI_ENABLED="true") as service:
        status, text = await service.page("/ui/")
        assert status == 200
        for shown in ("healthy", "broker", "database writes", "timers-retention", "sqlite"):
            assert shown in text
        assert (await service.page("/metrics"))[0] == 200
        assert "ui/" not in service.log.read_text()
    async with Service(tmp_path / "off", broker.url, TIMER_SUBJECT_PREFIX="other") as service:
        assert (await service.page("/ui/"))[0] == 404


def figure(text: str, name: str) -> int:
    """Return the number on a card of the overview, or beside a name."""
    found = re.search(
        rf'{name}(?:</h3>\s*<p class="figure \w*">|</a>: <b class="num">|</a></dt><dd class="num">|.*?num">)([\d,]+)<',
        text,
    )
    assert found is not None, name
    return int(found[1].replace(",", ""))


@pytest.mark.slow
async def test_numbers_agree(tmp_path: Path, broker: NatsServer, cli: Cli) -> None:
    """Each number on the overview is that of the metrics, and that of the command line, at the same moment."""
    limits = tmp_path / "limits.toml"
    limits.write_text("[tenants.small]\npending_timers = 0\n")
    async with (
        Service(tmp_path / "on", broker.url, TIMER_UI_ENABLED="true", TIMER_LIMITS_FILE=str(limits)) as service,
        TimerClient.connect(broker.url) as client,
    ):
        for number in range(9):
            due_in = timedelta(hours=1) if number < 6 else timedelta()
            await client.timers.schedule("acme", f"call-{number}", due_in=due_in)
        await client.workflows.start("acme", "order-1", "order")
        await client.runs.start("acme", "build", [{"name": "a"}, {"name": "b", "needs": ["a"]}])
        await client.runs.report("acme", "build", "a", "success")
        with pytest.raises(TimerServiceError):
            await client.runs.start("acme", "circle", [{"name": "a", "needs": ["b", "b"]}])
        refused = [await client.timers.schedule("small", f"call-{n}", due_in=timedelta(hours=1)) for n in range(3)]
        with closing(sqlite3.connect(tmp_path / "on" / "timers.db", isolation_level=None)) as database:
            database.execute(GIVE_UP)
        await service.until_metric('timer_rows{state="Failed",table="timer_schedules"}', at_least=2)
        await service.until_metric('timer_fire_lag_seconds_count{table="timer_schedules"}', at_least=3)
        _, text = await service.page("/ui/")
        timers = (await cli.json("timers", "count", "acme"))["counts"]
        workflows = (await cli.json("workflows", "count", "acme"))["counts"]
        runs = await cli.json("runs", "list", "acme", "--status", "running")
        letters = await cli.json("dead-letters", "list", "acme")
        metrics = {
            "Pending timers": 'timer_rows{state="Scheduled",table="timer_schedules"}',
            "Overdue": 'timer_overdue{table="timer_schedules"}',
            "Fired": 'timer_fire_lag_seconds_count{table="timer_schedules"}',
            "Rejected or given up": 'timer_dead_letters_total{code="INVALID_PAYLOAD"}',
            "Timers that were given up": 'timer_rows{state="Failed",table="timer_schedules"}',
            "Runs in progress": 'timer_rows{state="running",table="runs"}',
            "Commands over a limit": 'timer_commands_received_total{outcome="over_quota",type="ScheduleTimer"}',
        }
        commands = {
            "Pending timers": timers["Scheduled"],
            "Fired": timers["Reached"],
            "Rejected or given up": len(letters),
            "Timers that were given up": timers["Failed"],
            "waiting": workflows["waiting"],
            "workers online": len(await cli.json("workflows", "workers", "acme")),
            "Runs in progress": len(runs),
            "Commands over a limit": sum(each.name == "over_quota" for each in refused),
        }
        assert {name: figure(text, name) for name in metrics} == {
            name: await service.metric(sample) for name, sample in metrics.items()
        }
        assert {name: figure(text, name) for name in commands} == commands
        assert "1 of 2" in text
        _, text = await service.page("/ui/failed")
        assert re.findall(r'data-label="Count" class="end num">(\d+)<', text) == ["2"]
