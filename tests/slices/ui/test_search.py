"""The search for an id, over all tenants and kinds."""

import re

import pytest

from tests.harness.builders import scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.page import Page
from tests.harness.page_data import HOSTILE
from tests.harness.runs import Runs
from tests.harness.schedules import Schedules
from tests.harness.timers import put_timers
from timer_service.core.values.message import Position
from timer_service.ui.formats import input_value
from timer_service.ui.links import link

DELETED = """
INSERT INTO schedules (tenant_id, schedule_id, status, data_size, after_at, fired_count, is_paused, created_at,
    ended_at, created_epoch, created_sequence, defined_epoch, defined_sequence)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
SELECT tenant_id, 'report-1' || n, status, 0, after_at, 0, 0, created_at, ended_at,
    created_epoch, created_sequence, defined_epoch, defined_sequence
FROM schedules, numbers WHERE status = 'deleted'
"""
KINDS = ("timer", "schedule", "signal", "run", "workflow")


async def fill(page: Page) -> None:
    """Add things with the id `order-1` of three kinds and two tenants, and others that begin with it."""
    database, broker = page.instance.database, MemoryBroker()
    names = [("acme", "order-1"), ("acme", "order-10"), ("globex", "order-1"), ("globex", "invoice-7")]
    async with database.transaction() as tx:
        await put_timers(
            tx,
            [scheduled(each, NOW, Position(1, at), tenant=tenant) for at, (tenant, each) in enumerate(names, 1)],
        )
    await Runs(database, broker, ManualClock()).start({"a": []}, runId="order-1")
    schedules = Schedules(database, broker, ManualClock())
    await schedules.put("order-2", every="PT1H")
    await schedules.put("order-3", every="PT1H")
    await schedules.about("Delete", "order-3")


def hits(text: str) -> list[tuple[str, str, str]]:
    """Return the kind, the tenant and the id of each hit."""
    return [
        (kind, tenant, id_)
        for id_, kind, tenant in re.findall(
            r'class="id"><a [^>]*>(.*?)</a></th><td [^>]*>(.*?)</td><td [^>]*>(.*?)<', text
        )
    ]


async def test_all_kinds_and_tenants(page: Page) -> None:
    """Exact ids come first, of each kind and tenant, and then the ids that begin with the text."""
    await fill(page)
    text = (await page.get("/ui/search?id=order-1")).text
    assert hits(text) == [
        ("timer", "acme", "order-1"),
        ("timer", "globex", "order-1"),
        ("run", "acme", "order-1"),
        ("timer", "acme", "order-10"),
    ]
    assert hits((await page.get("/ui/search?id=order-1&tenant=globex")).text) == []
    assert "Nothing found." in (await page.get("/ui/search?id=order-3")).text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("id=order-1&tenant=globex", link("timer", tenant="globex", id="order-1")),
        ("id=order-10", link("timer", tenant="acme", id="order-10")),
        ("id=inv", link("timer", tenant="globex", id="invoice-7")),
        ("id=%20order-2%20", link("schedule", tenant="acme", id="order-2")),  # as it was pasted
        ("id=order-2", link("schedule", tenant="acme", id="order-2")),
    ],
)
async def test_a_single_hit(page: Page, query: str, found: str) -> None:
    """A single exact id, or a single id that begins with the text, leads to its page."""
    await fill(page)
    answer = await page.get(f"/ui/search?{query}")
    assert (answer.status, answer.headers["location"]) == (303, found)


async def test_hostile_ids(filled: Page) -> None:
    """Each id is found, whatever it contains."""
    for name in HOSTILE:
        text = (await filled.get(link("search", id=name))).text.replace(f'value="{input_value(name)}"', "")
        assert [
            kind for kind in KINDS if f'href="{link(kind, tenant="acme", id=name)}"'.replace("&", "&amp;") in text
        ] == [*KINDS]
        assert not re.search(r"<script>|<img|\u202e", text)


async def test_without_an_id(page: Page) -> None:
    """Without an id, the page asks for one. A wrong id is an error."""
    assert "Id, or its beginning" in (await page.get("/ui/search")).text
    assert (await page.get("/ui/search?id=a%00")).status == 400


async def test_deleted_things_hide_nothing(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thing is found behind hundreds of others whose rows only keep an id, up to the limit that the page names."""
    schedules = Schedules(page.instance.database, MemoryBroker(), ManualClock())
    for name in ("report-0", "report-9"):
        await schedules.put(name, every="PT1H")
    await schedules.about("Delete", "report-0")
    async with page.instance.database.transaction() as tx:
        await tx.execute(DELETED, {"count": 300})
    answer = await page.get("/ui/search?id=report-")
    assert (answer.status, answer.headers["location"]) == (303, link("schedule", tenant="acme", id="report-9"))
    monkeypatch.setattr("timer_service.ui.views.search.LOOKED_AT", 300)
    assert "looks at 300 ids of each kind" in (await page.get("/ui/search?id=report-")).text
    assert (await page.get("/ui/search?id=report-9")).headers["location"] == answer.headers["location"]


async def test_some_tenants_are_not_searched(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """If some tenants are not searched, they may have the same id: the page says so, and leads nowhere."""
    monkeypatch.setattr("timer_service.ui.views.search.TENANTS", 1)
    await fill(page)
    answer = await page.get("/ui/search?id=order-10")
    assert (answer.status, hits(answer.text)) == (200, [("timer", "acme", "order-10")])
    assert "Only the first 1 tenants were searched" in answer.text
    assert (await page.get("/ui/search?id=order-10&tenant=acme")).status == 303
