"""The lists of the overview: what comes next, what failed, and what is in progress, of all tenants."""

import html
import re

import pytest

from tests.harness.builders import command_address, in_state, raw_command, scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.page import Page
from tests.harness.page_data import WORKER
from tests.harness.runs import Runs
from tests.harness.schedules import Schedules
from tests.harness.timers import put_timers
from tests.harness.workflows import Workflows
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Position
from timer_service.timers.messages import State
from timer_service.ui.links import link


def part(text: str, heading: str) -> str:
    """Return the text of a section, without tags."""
    found = re.search(rf'<section aria-labelledby="{heading}-heading">(.*?)</section>', text, re.DOTALL)
    assert found is not None
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", found[1])).split())


async def test_next(page: Page) -> None:
    """The next ten timers and slots of all tenants are shown by their due times, also one that is tried again later."""
    timers = [
        scheduled(f"call-{at}", NOW + 3600_000 * at, Position(1, at), tenant=f"t-{at % 3}") for at in range(1, 13)
    ]
    timers[1] = timers[1]._replace(available_at=timers[4].available_at)
    async with page.instance.database.transaction() as tx:
        await put_timers(tx, timers)
    schedules = Schedules(page.instance.database, MemoryBroker(), ManualClock())
    await schedules.put("report", cron="30 13 * * *", zone="Europe/Berlin")
    shown = part((await page.get("/ui/")).text, "next")
    assert re.findall(r"(\S+) (?:timer|schedule) ", shown) == [
        *("call-1", "call-2", "call-3", "report"),
        *(f"call-{at}" for at in range(4, 10)),
    ]
    assert "report schedule of acme 2026-11-21 12:30:00 UTC in 3 h 30 min 2026-11-21 13:30:00 Europe/Berlin" in shown


async def test_failures_agree(filled: Page) -> None:
    """The overview has the same number of failures of each kind as the page of failures, and names them."""
    text = (await filled.get("/ui/")).text
    assert "healthy" in text
    assert 'Workflows without a worker</a>: <b class="num">2</b>' in text  # of the type `rare`
    counts = re.findall(r'<a href="/ui/failed\?kind=\w+">([^<]*)</a>: <b class="num">(\d+)</b>', text)
    failed = (await filled.get("/ui/failed")).text
    sections = re.findall(r"<h2 [^>]*>([^<]*)</h2>(.*?)</section>", failed, re.DOTALL)
    shown = {
        title: str(sum(map(int, re.findall(r'data-label="Count" class="end num">(\d+)<', rows))))
        for title, rows in sections
    }
    assert len(counts) == 6
    assert dict(counts) == {title: shown[title] for title, _ in counts}


async def test_failures(page: Page) -> None:
    """Failures of all tenants and kinds are shown, with their instants, and the commands that were rejected last."""
    timers = [scheduled(f"call-{at}", NOW - 60_000 * at, Position(1, at), tenant=f"t-{at % 3}") for at in range(1, 9)]
    async with page.instance.database.transaction() as tx:
        await put_timers(
            tx, [in_state(State.FAILED, each)._replace(last_error="the stream is full") for each in timers]
        )
    rejection = Rejection(Code.TOO_LARGE, "<b> is too large")
    page.rejections.add(
        Rejected(raw_command(address=command_address("t-1", "start-run")), rejection, None), NOW - 90_000
    )
    shown = part((await page.get("/ui/")).text, "failures")
    assert re.findall(r"(\S+) (?:timer|start-run) ", shown)[0] == "call-1"
    assert re.findall(r"call-\d", shown) == ["call-1", "call-2", "call-3", "call-4"]
    assert shown.index("call-1") < shown.index("TOO_LARGE: <b> is too large") < shown.index("call-2")
    assert "the stream is full due 2 min ago" in shown


async def test_work_in_progress(page: Page) -> None:
    """Workflows are counted by status, and workers that are online. The newest open runs show how far they are."""
    database, broker = page.instance.database, MemoryBroker()
    workflows = Workflows(database, broker, ManualClock())
    for name in ("one", "two"):
        await workflows.start(name)
    text = (await page.get("/ui/")).text
    assert 'Workflows without a worker</a>: <b class="num">2</b>' in text
    assert part(text, "workflows") == "Workflows waiting 2 workers online 0"
    async with database.transaction() as tx:
        for name, seen in (("w-1", NOW), ("w-2", NOW - 59_999), ("w-3", NOW - 60_000)):
            await tx.execute(WORKER, {"id": name, "queue": "default", "types": '["order"]', "seen": seen})
    runs = Runs(database, broker, ManualClock(NOW - 1000))
    await runs.start({"a": [], "b": ["a"], "c": []}, runId="build")
    await runs.report("failed", "a", runId="build")
    await runs.start({"a": []}, runId="ended")
    await runs.report("success", "a", runId="ended")
    text = (await page.get("/ui/")).text
    assert "Workflows without a worker" not in text
    assert part(text, "workflows") == "Workflows waiting 2 workers online 2"
    assert re.sub(r" \d+ \w+ ago", "", part(text, "runs")) == (
        "Runs in progress 1 Runs that have not ended Id Jobs that ended build run of acme, 2 of 3, 1 failed"
    )


async def test_sleeping_workflows_hide_no_others(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows without a worker are found behind any number of workflows that sleep. The first tenant is named."""
    monkeypatch.setattr("timer_service.ui.views.overview.MOST_COUNTED", 3)
    database = page.instance.database
    workflows = Workflows(database, MemoryBroker(), ManualClock())
    for name in ("one", "two", "three", "four"):
        await workflows.start(name)
    async with database.transaction() as tx:
        await tx.execute("UPDATE workflows SET due_at = :at, available_at = :at", {"at": NOW + 1})
    for tenant in ("globex", "initech"):
        await workflows.start(tenant=tenant)
    text = (await page.get("/ui/")).text
    assert f'<a href="{html.escape(link("workflows", tenant="globex", status="waiting"))}">' in text
    assert '</a>: <b class="num">2</b> <span class="quiet">of globex and 1 other tenant</span>' in text


async def test_too_many_workers(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are more workers than the page reads, it does not claim that a workflow has none."""
    monkeypatch.setattr("timer_service.ui.views.overview.MOST_COUNTED", 2)
    await Workflows(page.instance.database, MemoryBroker(), ManualClock()).start(type="rare")
    for number, is_claimed in ((1, True), (2, False)):
        async with page.instance.database.transaction() as tx:
            await tx.execute(WORKER, {"id": f"w-{number}", "queue": "default", "types": '["order"]', "seen": NOW})
        assert ("Workflows without a worker" in (await page.get("/ui/")).text) == is_claimed
