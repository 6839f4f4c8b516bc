"""The pages of failures, signals, runs, schedules and workflows."""

import html
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.harness import page_data
from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.page import Page
from tests.harness.page_data import HOSTILE
from tests.harness.runs import Runs
from tests.harness.timers import put_timers
from tests.harness.transactions import recording_route
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.ports.database import Database
from timer_service.runs import SLICE
from timer_service.timers.messages import State
from timer_service.ui.formats import visible
from timer_service.ui.links import link
from timer_service.ui.views import VIEWS

LISTS = ("signals", "runs", "schedules", "workflows")
ITEMS = {"timers": "timer", "signals": "signal", "runs": "run", "schedules": "schedule", "workflows": "workflow"}


def links_to(text: str, page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(rf'href="(/ui/{page}\?[^"]*)"', text)]


@pytest.mark.parametrize("name", LISTS)
async def test_empty_lists(page: Page, name: str) -> None:
    """An empty list says what to do next."""
    text = (await page.get(f"/ui/{name}")).text
    assert f"No tenant has {name}." in text
    assert f"timer-service {name} " in text
    text = (await page.get(f"/ui/{name}?tenant=acme")).text
    assert f"Tenant acme has no {name}." in text
    assert f"timer-service {name} " in text


@pytest.mark.parametrize("name", LISTS)
async def test_tenants_of_lists(filled: Page, name: str) -> None:
    """Without a tenant, a list shows the tenants that have rows."""
    assert links_to((await filled.get(f"/ui/{name}")).text, name) == [f"/ui/{name}?tenant=acme"]


@pytest.mark.parametrize("name", ITEMS)
async def test_hostile_ids(filled: Page, name: str) -> None:
    """Whatever an id contains, lists and pages show it as text, and the link of a row leads to its page."""
    listed = await filled.get(f"/ui/{name}?tenant=acme")
    links = links_to(listed.text, ITEMS[name])
    for each in HOSTILE:
        path = link(ITEMS[name], tenant="acme", id=each)
        assert path in links
        one = await filled.get(path)
        assert one.status == 200
        for text in (listed.text, one.text):
            assert str(html.escape(visible(each)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")) in text
            assert not re.search(r"<script>|<img|\u202e", text)


@pytest.mark.parametrize(
    ("name", "status"), [("signals", "paused"), ("schedules", "paused"), ("workflows", "cancelled")]
)
async def test_status(filled: Page, name: str, status: str) -> None:
    """A list can be narrowed to a status."""
    found = links_to((await filled.get(f"/ui/{name}?tenant=acme&status={status}")).text, ITEMS[name])
    assert found == [link(ITEMS[name], tenant="acme", id=HOSTILE[1])]


@pytest.mark.parametrize("name", LISTS)
async def test_pages_of_lists(filled: Page, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list leads to the next page, and all pages together show each row once."""
    monkeypatch.setattr("timer_service.ui.views.lists.PAGE_ROWS", 4)
    path, found = f"/ui/{name}?tenant=acme", []
    while path:
        text = (await filled.get(path)).text
        here = links_to(text, ITEMS[name])
        assert len(here) <= 4
        found += here
        path = next((html.unescape(each) for each in re.findall(r'rel="next" href="([^"]*)"', text)), "")
    assert len(found) == len(set(found)) > 8


WRONG = {
    **{f"/ui/{item}?tenant=acme&id=nope": (404, "nope") for item in ITEMS.values()},
    **{f"/ui/{item}?tenant=acme": (400, "This page needs “tenant” and “id”") for item in ITEMS.values()},
    **{f"/ui/{name}?tenant=acme&status=wrong": (400, "“status” must be one of") for name in LISTS},
    **{f"/ui/{name}?tenant=acme&cursor=wrong": (400, "must be a cursor from a reply") for name in LISTS},
    "/ui/run?tenant=acme&id=build&cursor=wrong": (400, "must be a cursor from a reply"),
    "/ui/workflow?tenant=acme&id=order-1&cursor=wrong": (400, "must be a cursor from a reply"),
    "/ui/workflows?tenant=acme&workflow_type=a:b": (400, "“workflow_type” must have 1 to 100 characters"),
    "/ui/workers": (400, "This page needs “tenant”"),
    "/ui/events": (400, "This page needs “tenant”"),
    "/ui/failed?kind=wrong": (400, "“kind” must be one of: timers, events, firings"),
}


async def test_wrong_requests(filled: Page) -> None:
    """A wrong request gets a page that says what is wrong."""
    for path, (status, text) in WRONG.items():
        answer = await filled.get(path)
        assert (answer.status, text in answer.text) == (status, True), path


async def test_pages_use_the_reader_of_queries(filled: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page reads by the connections of the service's own work, so a slow page delays nothing."""
    database = filled.instance.database
    monkeypatch.setattr(database, "reader", None)
    monkeypatch.setattr(database, "transaction", None)
    reads: list[str] = []
    for name in ("fetch", "fetch_each"):
        monkeypatch.setattr(type(database.queries), name, noting(reads, database, name))
    for view in VIEWS:
        item = {"tenant": "acme", "id": "build" if view.path == "run" else HOSTILE[0]}
        given = {name: value for name, value in item.items() if name in view.parameters}
        before = len(reads)
        answer = await filled.get(link(view.path, **given))
        assert answer.status == 200, view.path
        assert len(reads) > before or view.path == "", view.path


async def test_nothing_on_the_first_page(filled: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a page has looked at many workflows and none of them matches, it leads on."""
    monkeypatch.setattr("timer_service.workflows.queries.LOOKED_AT", 2)
    text = (await filled.get("/ui/workflows?tenant=acme&workflow_type=nope")).text
    assert "None of these workflows matches." in text
    assert 'rel="next"' in text


async def test_nothing_failed(page: Page) -> None:
    """Without failures, the page says so."""
    text = (await page.get("/ui/failed")).text
    assert "Nothing was given up." in text
    assert "rejected no command" in text


async def test_failures(filled: Page) -> None:
    """Failures are counted by kind and tenant, with the reason of the first and the command that retries it."""
    text = (await filled.get("/ui/failed")).text
    for shown in (
        *("Timers that were given up", "Buried events", "Firings that were given up", "Failed workflows"),
        *("Schedules that cannot fire", "maximum bytes exceeded", "timer-service events retry acme --all"),
        html.escape("no response from stream TIMER_EVT for <script>"),
    ):
        assert shown in text
    assert "Blocked workflows" not in text
    assert links_to(text, "timers") == ["/ui/timers?tenant=acme&state=Failed"]
    for shown in ("no room", "timer-service signals activate acme signal-1", "STEP_FAILED", "there is no zone X"):
        assert shown in text


async def test_failures_of_many_tenants(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failures of 50 tenants are read with three statements."""
    failed = [in_state(State.FAILED, scheduled("call", tenant=f"t{number}")) for number in range(50)]
    async with page.instance.database.transaction() as tx:
        await put_timers(tx, [each._replace(last_error="the stream is full") for each in failed])
    reads: list[str] = []
    for name in ("fetch", "fetch_each"):
        monkeypatch.setattr(type(page.instance.database.queries), name, noting(reads, page.instance.database, name))
    text = (await page.get("/ui/failed?kind=timers")).text
    assert text.count("the stream is full") == 50
    assert len(reads) == 3


def noting(reads: list[str], database: Database, name: str) -> Callable[..., Awaitable[Any]]:
    """Return a method of the reader that notes its statements."""
    real = getattr(type(database.queries), name)

    async def read(self: object, sql: str, *arguments: object) -> Any:
        reads.append(sql)
        return await real(self, sql, *arguments)

    return read


async def test_one_kind_of_failure(filled: Page) -> None:
    """A kind of failure has a page of its own, for many tenants."""
    text = (await filled.get("/ui/failed?kind=workflows")).text
    assert "Failed workflows" in text
    assert "Buried events" not in text
    assert "Nothing here." in (await filled.get("/ui/failed?kind=blocked")).text


async def test_dead_letters(page: Page) -> None:
    """Dead letters are counted by code, and the page says how to read them."""
    page.metrics.dead_letter_stored("TOO_LARGE")
    await page.samples.tick(page.clock.now() - 30_000)
    page.metrics.dead_letter_stored("TOO_LARGE")
    await page.samples.tick(page.clock.now())
    text = (await page.get("/ui/failed")).text
    assert re.search(r"TOO_LARGE</th><td [^>]*>1</td><td [^>]*>2</td>", text)
    assert "timer-service dead-letters list" in text


async def test_newest_dead_letters(page: Page) -> None:
    """The 20 commands that the instance rejected last are shown with their reasons, newest first, as text."""
    runs = Runs(page.instance.database, MemoryBroker(), page.clock)
    runs.reader = replace(runs.parts, on_rejected=page.rejections.add).reader(
        [recording_route(SLICE, runs._woken)[0]], runs._wake_outbox
    )
    assert "The newest" not in (await page.get("/ui/failed")).text
    for number in range(25):
        runs.send("StartRun", runId=f"run-{number}", jobs=[{"name": "<b>", "needs": 7}], message_id=f"<i>{number}")
    await runs.consume()
    text = (await page.get("/ui/failed")).text
    ids = re.findall(r'start-run <span class="quiet">(.*?)</span>', text)
    assert ids == [f"&lt;i&gt;{number}" for number in range(24, 4, -1)]
    assert "jobs.0.needs" in text
    assert "INVALID_PAYLOAD" in text


async def test_buried_events(filled: Page) -> None:
    """Buried events are listed with the reason and the command that publishes them."""
    text = (await filled.get("/ui/events?tenant=acme")).text
    assert "RunCompleted" in text
    assert html.escape(HOSTILE[0]) in text
    assert "timer-service events retry acme --all" in text
    assert "has no buried events" in (await filled.get("/ui/events?tenant=other")).text


async def test_signal(filled: Page) -> None:
    """A signal shows what it waits for, its firings and what an operator can do."""
    path = link("signal", tenant="acme", id=HOSTILE[0])
    text = (await filled.get(path)).text
    assert "ticket-0 becomes blocked" in text
    assert "enqueued" in text
    assert "timer-service signals activate acme" in text
    assert "It has not fired yet." in (await filled.get(link("signal", tenant="acme", id=HOSTILE[4]))).text
    text = (await filled.get("/ui/signal?tenant=acme&id=invalid")).text
    assert "never fires" in text
    assert "Its trigger is invalid." in text
    assert "There are no firings." in text
    assert "it is 2026-11-21 10:00:00 UTC" in (await filled.get("/ui/signal?tenant=acme&id=tomorrow")).text


async def test_signals_of_an_item(filled: Page) -> None:
    """Signals are found by their work item."""
    found = links_to((await filled.get("/ui/signals?tenant=acme&work_item_id=ticket-1")).text, "signal")
    assert sorted(found) == sorted(link("signal", tenant="acme", id=each) for each in HOSTILE[1::3])


async def test_schedule(filled: Page) -> None:
    """A schedule shows its next ten slots and what an operator can do."""
    text = (await filled.get("/ui/schedule?tenant=acme&id=weekdays")).text
    slots = re.findall(r'<li class="num"><span><time datetime="([^"]*)"', text)
    assert len(slots) == 10
    assert slots[:2] == ["2026-11-23T08:00:00.000Z", "2026-11-24T08:00:00.000Z"]
    assert "Europe/Berlin" in text
    for verb in ("pause", "trigger", "delete"):
        assert f"timer-service schedules {verb} acme weekdays" in text
    assert "timer-service schedules resume" not in text


async def test_schedules_without_slots(filled: Page) -> None:
    """A schedule that has ended or cannot fire says so."""
    assert "There is no further slot." in (await filled.get("/ui/schedule?tenant=acme&id=short")).text
    text = (await filled.get("/ui/schedule?tenant=acme&id=-rf")).text
    assert "there is no zone X" in text
    assert '<span class="status bad">cannot fire</span> every 15 min' in text


async def test_workflow(filled: Page) -> None:
    """A workflow shows its steps, sleeps and waits."""
    text = (await filled.get("/ui/workflow?tenant=acme&id=order-1")).text
    for shown in (
        "charge the card",
        "cool down",
        "approval",
        "wait for a message",
        "{&#34;charge&#34;: &#34;ch_1&#34;}",
    ):
        assert shown in text
    assert "continues <time" in text
    assert "waits for a worker since <time" in (await filled.get("/ui/workflow?tenant=acme&id=-rf")).text
    assert "timer-service workflows cancel acme order-1" in text
    assert "No worker asks for its queue and type." in (await filled.get("/ui/workflow?tenant=acme&id=rare")).text


async def test_failed_workflow(filled: Page) -> None:
    """A failed workflow shows the error, and the command that continues it."""
    text = (await filled.get("/ui/workflow?tenant=acme&id=order-2")).text
    assert "STEP_FAILED in step reserve" in text
    assert "the warehouse &lt;b&gt; is closed" in text
    assert "timer-service workflows retry acme order-2" in text
    assert "data-refresh" not in text


async def test_workers(filled: Page) -> None:
    """The workers of a tenant are listed."""
    assert "No worker of tenant other was seen lately." in (await filled.get("/ui/workers?tenant=other")).text
    worker: Mapping[str, Any] = {"id": "worker-2", "now": NOW, "types": '["order"]', "name": "<i>one</i>"}
    async with filled.instance.database.transaction() as tx:
        await tx.execute(
            """INSERT INTO workflow_workers (tenant_id, worker_id, name, queue, types, slots, first_seen_at, seen_at)
            VALUES ('acme', :id, :name, 'default', :types, 4, :now, :now)""",
            worker,
        )
    text = (await filled.get("/ui/workers?tenant=acme")).text
    assert "&lt;i&gt;one&lt;/i&gt;" in text
    assert "online" in text


async def test_run(filled: Page) -> None:
    """A run shows its graph, and each box leads to the row of its job."""
    text = (await filled.get("/ui/run?tenant=acme&id=build")).text
    jobs = re.findall(r'<tr id="(job-\d+)">', text)
    boxes = re.findall(r'<a class="box [^"]*" href="#(job-\d+)"', text)
    assert len(jobs) >= 30
    assert sorted(boxes) == sorted(jobs)
    assert "not resolved" in text
    assert text.count("<path") > len(jobs)
    assert "deploy-to-pr\N{HORIZONTAL ELLIPSIS}" in text
    assert "timer-service runs cancel acme build" in text


async def test_counts_of_a_run(filled: Page) -> None:
    """The counts above the graph are those of the jobs as they are shown: a pending job may be ready."""
    found = Counter[str]()
    for run in ("build", "-rf"):
        text = (await filled.get(link("run", tenant="acme", id=run))).text
        legend = text[text.index("Jobs by status") : text.index("graph-heading")]
        counts = re.findall(r'class="status [^"]*">([^<]*)</span> <span class="num">(\d+)<', legend)
        rows = Counter(re.findall(r'data-label="Status"><span class="status [^"]*">([^<]*)<', text))
        assert {status: int(count) for status, count in counts} == rows
        found += rows
    assert min(found[status] for status in ("ready", "pending", "running", "success")) > 0


async def test_rejected_run(filled: Page) -> None:
    """A rejected run shows the reason and the jobs at fault."""
    text = (await filled.get("/ui/run?tenant=acme&id=circle")).text
    assert "CYCLE" in text
    assert "It was rejected. Correct the graph, and start it with another id." in text


async def test_large_run(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is too large to draw has pages of jobs, without a graph, from the first one on."""
    monkeypatch.setattr("timer_service.ui.views.runs._MOST_DRAWN", 20)
    monkeypatch.setattr("timer_service.ui.views.runs.PAGE_ROWS", 10)
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    await runs.start({f"job-{number:02d}": [] for number in range(25)}, runId="large")
    path, seen = "/ui/run?tenant=acme&id=large", []
    while path:
        text = (await page.get(path)).text
        assert "<path" not in re.sub(r"<header.*?</header>", "", text, flags=re.DOTALL)
        jobs = re.findall(r'<th scope="row" class="id">(job-\d+)</th>', text)
        assert len(jobs) <= 10
        seen += jobs
        path = next((html.unescape(each) for each in re.findall(r'rel="next" href="([^"]*)"', text)), "")
    assert seen == [f"job-{number:02d}" for number in range(25)]


async def test_run_with_many_needs(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with too many needs is a list: placing its edges would hold the service up."""
    monkeypatch.setattr("timer_service.ui.views.runs._MOST_NEEDS", 2)
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    await runs.start({"a": [], "b": ["a"], "c": ["a", "b"]}, runId="dense")
    text = (await page.get("/ui/run?tenant=acme&id=dense")).text
    assert "too many jobs or needs to draw" in text
    assert re.findall(r'<th scope="row" class="id">(\w)</th>', text) == ["a", "b", "c"]


async def test_long_needs_are_drawn_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose needs come on several pages is one box with all edges."""
    monkeypatch.setattr("timer_service.runs.queries.PAGE_BYTES", 360)
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    names = [f"job-{number}" for number in range(8)]
    await runs.start({**{name: [] for name in names}, "last": names}, runId="wide")
    text = (await page.get("/ui/run?tenant=acme&id=wide")).text
    assert len(re.findall(r'<a class="box ', text)) == 9
    assert len(re.findall(r'<path d="M', text.partition('class="edges"')[2])) == 8


@pytest.mark.slow
async def test_pages_on_postgres(postgres: PostgresDatabase, clock: ManualClock) -> None:
    """Each page can be read from PostgreSQL too."""
    await page_data.fill(postgres, NOW, jobs=8)
    page = Page(postgres, clock)
    for view in VIEWS:
        answer = await page.get(f"/ui/{view.path}{'?tenant=acme' if 'tenant' in view.parameters else ''}")
        assert answer.status == (400 if "id" in view.parameters else 200), view.path
    for name, item in ITEMS.items():
        text = (await page.get(f"/ui/{name}?tenant=acme")).text
        for path in links_to(text, item)[:3]:
            assert (await page.get(path)).status == 200, path


async def test_open_backfills(filled: Page) -> None:
    """A schedule shows its open backfills: the range, how many slots fired and are left, and why one waits."""
    text = (await filled.get(link("schedule", tenant="acme", id=HOSTILE[0]))).text
    rows = [texts(each) for each in re.findall(r"<tr>.*?</tr>", text[text.index("Open backfills") :], re.DOTALL)[1:]]
    first, last = "2026-08-13 09:00:00 UTC", "2026-11-20 09:00:00 UTC"
    assert rows[0] == [first, last, "500", "0", "1,500", "2026-08-18 13:45:00 UTC", "its next turn"]
    assert rows[1][:6] == ["2026-08-23 09:00:00 UTC", last, "0", "0", "2,000", "none yet"]
    assert "there is no zone &lt;script&gt;" in rows[1][6]
    assert "2026-11-21 09:00:42 UTC in 42 s" in rows[1][6]
    assert "Open backfills" not in (await filled.get("/ui/schedule?tenant=acme&id=weekdays")).text


def texts(row: str) -> list[str]:
    """Return the text of each cell of a row."""
    cells = [re.sub(r"<[^>]*>", "", each) for each in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", row, re.DOTALL)]
    return [" ".join(each.split()) for each in cells]
