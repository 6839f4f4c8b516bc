"""The pages of failures, signals, runs, schedules and workflows, on rows of every kind."""

import html
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness import page_data
from tests.harness.builders import command_address, raw_command
from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.page import Page
from tests.harness.page_data import HOSTILE
from tests.harness.runs import Graph, Runs, run_after
from tests.harness.workflows import Workflows, done, seen, sleep
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.raw_command import MESSAGE_ID
from timer_service.ui.formats import visible
from timer_service.ui.links import link
from timer_service.ui.views import VIEWS
from timer_service.workflows.workflow import BLOCKED_FROM

LISTS = ("signals", "runs", "schedules", "workflows")
ITEMS = {"timers": "timer", "signals": "signal", "runs": "run", "schedules": "schedule", "workflows": "workflow"}


def links_to(text: str, page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(rf'href="(/ui/{page}\?[^"]*)"', text)]


@pytest.mark.parametrize("name", ITEMS)
async def test_empty_lists(page: Page, name: str) -> None:
    """An empty list says what to do next."""
    text = (await page.get(f"/ui/{name}")).text
    assert f"No tenant has {name}." in text
    assert f"timer-service {name} " in text
    text = (await page.get(f"/ui/{name}?tenant=acme")).text
    assert f"Tenant acme has no {name}." in text
    assert f"timer-service {name} " in text


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


@pytest.mark.parametrize("name", LISTS)
async def test_pages_of_lists(filled: Page, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list leads to the next page, and all pages together show each row once."""
    monkeypatch.setattr("timer_service.ui.views.lists.PAGE_ROWS", 4)
    pages = [links_to(text, ITEMS[name]) async for text in filled.follow(f"/ui/{name}?tenant=acme")]
    found = [each for links in pages for each in links]
    assert max(map(len, pages)) <= 4
    assert len(found) == len(set(found)) > 8


async def test_filters_stay(filled: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page, the other statuses and the next search keep the filters of a list."""
    monkeypatch.setattr("timer_service.ui.views.lists.PAGE_ROWS", 2)
    path = "/ui/signals?tenant=acme&status=active&work_item_id=ticket-1&cursor="  # a form sends empty fields too
    pages = [text async for text in filled.follow(path)]
    assert ["First page" in text for text in pages] == [False, True]
    found = [each for text in pages for each in links_to(text, "signal")]
    assert sorted(found) == sorted(link("signal", tenant="acme", id=HOSTILE[number]) for number in (4, 7, 10))
    for text in pages:
        assert link("signals", tenant="acme", status="paused", work_item_id="ticket-1") in links_to(text, "signals")
        assert '<input type="hidden" name="status" value="active">' in text


WRONG = {
    **{f"/ui/{item}?tenant=acme&id=nope": (404, "nope") for item in ITEMS.values()},
    **{f"/ui/{item}?tenant=acme": (400, "This page needs “tenant” and “id”") for item in ITEMS.values()},
    **{f"/ui/{name}?tenant=acme&status=wrong": (400, "“status” must be one of") for name in LISTS},
    **{f"/ui/{name}?tenant=acme&cursor=wrong": (400, "must be a cursor from a reply") for name in LISTS},
    "/ui/run?tenant=acme&id=build&cursor=wrong": (400, "must be a cursor from a reply"),
    "/ui/workflow?tenant=acme&id=order-1&cursor=wrong": (400, "must be a cursor from a reply"),
    "/ui/workflows?tenant=acme&workflow_type=a:b": (400, "“workflow_type” must have 1 to 100 characters"),
    **{f"/ui/{name}?after=%00": (400, "“after” has the character NUL") for name in (*ITEMS, "failed")},
    "/ui/events": (400, "This page needs “tenant”"),
    "/ui/parked": (400, "This page needs “tenant”"),
    "/ui/failed?kind=wrong": (400, "“kind” must be one of: timers, events, parked, firings"),
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
    for view in VIEWS:
        item = {"tenant": "acme", "id": "build" if view.path == "run" else HOSTILE[0]}
        given = {name: value for name, value in item.items() if name in view.parameters}
        answer = await filled.get(link(view.path, **given))
        assert answer.status == 200, view.path


COMMAND = "timer-service {} acme".format
SHOWN: dict[str, tuple[str, ...]] = {
    "": ("It is the only instance on this database.",),
    "failed": (
        *("Parked events", COMMAND("events resubmit") + " orders --all", "/ui/parked?tenant=acme"),
        *("Timers that were given up", "Buried events", "Firings that were given up", "Failed workflows"),
        *("Schedules that cannot fire", "maximum bytes exceeded", COMMAND("events retry") + " --all", "warehouse"),
        *(
            "no response from stream TIMER_EVT for",
            "no room",
            COMMAND("signals activate") + " signal-1",
            "there is no zone X",
        ),
        *(
            "/ui/timers?tenant=acme&amp;state=Failed",
            "/ui/signals?tenant=acme&amp;status=paused",
            "rejected no command",
        ),
        *("/ui/workflows?tenant=acme&amp;status=failed", "/ui/schedules?tenant=acme&amp;status=active"),
    ),
    "failed?kind=blocked": ("Nothing here.",),
    "events?tenant=acme": (
        "RunCompleted",
        html.escape(HOSTILE[0]),
        COMMAND("events retry") + " &#39;&#34;&gt;&lt;img",
        COMMAND("events retry") + " --all",
    ),
    "events?tenant=other": ("has no buried events",),
    "parked?tenant=acme": (
        *("DueTimeReached", html.escape(HOSTILE[0]), "cannot handle &lt;script&gt;"),
        *(COMMAND(f"events {name}") + " orders &#39;&#34;&gt;&lt;img" for name in ("show", "resubmit", "drop")),
        COMMAND("events resubmit") + " orders --all",
    ),
    "parked?tenant=other": ("has no parked events",),
    link("signal", id=HOSTILE[0])[4:]: ("ticket-0 becomes blocked", "enqueued", COMMAND("signals activate")),
    "signal?id=invalid": ("never fires", "Its trigger is invalid.", "There are no firings."),
    "signal?id=tomorrow": ("it is 2026-11-21 10:00:00 UTC",),
    link("schedule", id=HOSTILE[1])[4:]: ("Next slots, if it is resumed now",),
    "schedule?id=pay": ("every 2 weeks from", "2026-12-04 08:00:00", "2026-12-18 08:00:00", "Europe/Berlin"),
    "schedule?id=weekdays": (
        *("At 09:00 on Monday through Friday", "2026-11-23 09:00:00</span> Europe/Berlin"),
        "Next slots</h2>",
        "2026-11-23 08:00:00",
        "2026-11-24 08:00:00",
        "Europe/Berlin",
        COMMAND("schedules pause"),
    ),
    "workflow?id=order-1": (
        *("charge the card", "cool down", "wait for a message", "{&#34;charge&#34;: &#34;ch_1&#34;}"),
        *('waits for message <span class="mono">approval', "continues at the latest <time"),
        *(COMMAND("workflows send") + " order-1 approval --data=", COMMAND("workflows cancel") + " order-1"),
    ),
    "workflows?tenant=acme": ("no worker asks for this type and queue",),
    "workflow?id=-rf": ("waits for a worker since <time",),
    "workflow?id=rare": ("No worker asks for its queue and type.",),
    "workflow?id=order-2": (
        '<span class="mono">STEP_FAILED</span>',
        "the warehouse &lt;b&gt; is closed",
        COMMAND("workflows retry"),
    ),
    "workers?tenant=other": ("No worker of tenant other was seen lately.",),
    "run?id=circle": (
        "jobs need each other in a circle",
        "It was rejected. Correct the graph, and start it with another id.",
    ),
}


@pytest.mark.parametrize("path", SHOWN)
async def test_what_is_shown(filled: Page, path: str) -> None:
    """A page shows its thing with its reason, in words, and the commands that make sense for it."""
    text = (await filled.get(f"/ui/{path}" + ("&tenant=acme" if "id=" in path else ""))).text
    assert [each for each in SHOWN[path] if each not in text] == []


COMMANDS: dict[str, list[str]] = {
    link("timer", id=HOSTILE[0]): ["timers retry"],
    link("timer", id=HOSTILE[1]): ["timers cancel"],
    link("signal", id=HOSTILE[0]): ["signals activate", "signals resolve"],
    link("signal", id=HOSTILE[1]): ["signals activate", "signals resolve"],
    link("signal", id=HOSTILE[2]): ["signals pause", "signals resolve", "signals cancel"],
    link("run", id="build"): ["runs cancel"],
    link("run", id="circle"): [],
    link("run", id=HOSTILE[1]): ["runs retry"],
    link("schedule", id="weekdays"): ["schedules pause", "schedules trigger", "schedules delete"],
    link("schedule", id=HOSTILE[1]): ["schedules resume", "schedules trigger", "schedules delete"],
    link("schedule", id="short"): ["schedules trigger", "schedules delete"],
    link("workflow", id="order-1"): ["workflows send", "workflows cancel"],
    link("workflow", id="order-2"): ["workflows retry"],
    link("workflow", id="order-3"): [],
    link("workflow", id=HOSTILE[1]): [],
}


async def test_commands(filled: Page) -> None:
    """A page has the commands that have an effect in the state of its thing. It updates itself if that may change."""
    for path, commands in COMMANDS.items():
        text = (await filled.get(f"{path}&tenant=acme")).text
        assert re.findall(r"<code>timer-service (\w+ \w+)", text) == commands, path
        assert ("data-refresh" in text) == bool(re.search("cancel|pause", " ".join(commands))), path


BEFORE = "2026-11-21 08:55:00 UTC"
FORTNIGHT = "2026-12-04 08:00:00 UTC in 12 d 23 h 2026-12-04 09:00:00 Europe/Berlin"
FIVE = "Every fifth minute of every hour */5 * * * * UTC"
EARLIER = "2026-11-21 08:59:00 UTC 1 min ago"
LINES: dict[str, list[str]] = {
    "?": ["database sqlite", "role all", "started 2026-11-21 09:00:00 UTC now", "timers | ok | not yet |"],
    "timers?tenant=acme": ["' OR 1=1 -- | Scheduled | 2026-11-21 09:05:00 UTC in 5 min | 0 | |"],
    "signals?tenant=acme": [f"-rf | fired | ticket-0 becomes blocked | {EARLIER} | |"],
    "runs?tenant=acme": [
        "circle | rejected | | {0} | {0} | jobs need each other in a circle |".format(
            "2026-11-21 08:50:00.014 UTC 9 min 59 s ago"
        )
    ],
    "schedules?tenant=acme": [
        f"' OR 1=1 -- | active | every 15 min | 2026-11-21 09:00:00 UTC now | {EARLIER} | 1 |",
        f"-rf | cannot fire | every 15 min | | {EARLIER} | 1 |",
        f"order | active | {FIVE} | 2026-11-21 09:00:00 UTC now | {EARLIER} | 1 |",
        f"pay | active | every 2 weeks from 2026-11-20 09:00:00 Europe/Berlin | {FORTNIGHT} | | 0 |",
    ],
    "workflows?tenant=acme": [
        f"order-1 | waiting | order | {BEFORE} | 2026-11-22 08:55:00 UTC in 23 h 55 min | waits for message approval |",
        f"order-2 | failed | order | {BEFORE} | {BEFORE} 5 min ago | the warehouse <b> is closed |",
        f"turn-2 | queued | rare | {BEFORE} | | Waits for its concurrency key, behind turn-1 |",
    ],
    "workers?tenant=acme": ["-rf | offline | -rf | refund, -rf | 4 | 2026-11-21 08:55:20 UTC 4 min 40 s ago |"],
    "signal?tenant=acme&id=tomorrow": [f"{EARLIER} | queued | 2026-11-21T10:00:00.000Z/1-14 | | 0 | | |"],
    "run?tenant=acme&id=-rf": ["-rf | ready | | 2026-11-21 08:50:00.007 UTC | | |"],
    "schedule?tenant=acme&id=short": [
        *("fired 1 slot", f"last fired {EARLIER}", "late slots policy last, late after 1 min", "jitter none"),
        *("ends 2026-11-21 08:10:00 UTC 50 min ago", f"ended {EARLIER} : its end has passed"),
        "created 2026-11-21 08:00:00 UTC 1 h ago",
    ],
    "schedule?tenant=acme&id=order": ["starts workflow order in queue default"],
    "workflow?tenant=acme&id=order-1": [
        *("type order", "queue default", "created 2026-11-21 08:55:00 UTC 5 min ago"),
        *('1 | charge the card | step | done | | | {"charge": "ch_1"} |',),
        "| approval | wait for a message | open | 2026-11-23 08:55:00 UTC in 1 d 23 h | | |",
    ],
    "workflow?tenant=acme&id=rare%20and%20ended": ["cancelled a mistake"],
    "workflow?tenant=acme&id=turn-2": [
        *(
            "queued Waits for its concurrency key, behind turn-1",
            "concurrency key turn , at most 1 started; when busy: queue",
        ),
    ],
    "workflow?tenant=acme&id=order-2": ["| reserve | step | failed | | 1 | OSError: no |"],
}


@pytest.mark.parametrize("path", LINES)
async def test_facts_and_rows(filled: Page, path: str) -> None:
    """Each fact and each cell of a row is under its name."""
    text = (await filled.get(f"/ui/{path}")).text
    found = re.findall(
        r'<p class="lead">.*?</p>|<dt>.*?</dd>|<tr.*?</tr>',
        text.replace("</td>", " | ").replace("</th>", " | "),
        re.DOTALL,
    )
    lines = [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", each)).split()) for each in found]
    assert [each for each in LINES[path] if each not in lines] == [], lines


async def test_blocked_workflows(filled: Page) -> None:
    """A workflow that does not match its function for the third time is a failure, until it has ended."""
    async with filled.instance.database.transaction() as tx:
        for name, blocks in (("order-1", BLOCKED_FROM), ("rare", BLOCKED_FROM - 1), ("order-3", BLOCKED_FROM)):
            change = f"UPDATE workflows SET blocks = {blocks}, last_error = 'as in {name}' WHERE workflow_id = :id"
            await tx.execute(change, {"id": name})
    text = (await filled.get("/ui/failed?kind=blocked")).text
    assert re.findall(r"as in [\w-]*", text) == ["as in order-1"]
    assert re.findall(r'class="end num">(.*?)<', text) == ["1"]


async def test_a_code_of_a_newer_version(filled: Page) -> None:
    """A code or reason that this version does not know is shown as it is, also while a fleet is upgraded."""
    async with filled.instance.database.transaction() as tx:
        await tx.execute("UPDATE workflows SET failure_code = 'OUT_OF_CREDIT' WHERE status = 'failed'")
        await tx.execute("DELETE FROM workflow_data WHERE error IS NOT NULL")
        reasons = "end_reason = 'budget', last_skipped_at = 1, last_skip_reason = 'holiday'"
        await tx.execute(f"UPDATE schedules SET {reasons} WHERE status = 'ended'")
    for path, shown in {
        "": "Failed workflows",
        "failed": "OUT_OF_CREDIT",
        "workflows?tenant=acme": "OUT_OF_CREDIT",
        "workflow?tenant=acme&id=order-2": "OUT_OF_CREDIT",
        "schedules?tenant=acme&status=ended": "short",
        "schedule?tenant=acme&id=short": "holiday",
        "schedule?id=short&tenant=acme": "budget",
    }.items():
        answer = await filled.get(f"/ui/{path}")
        assert (answer.status, shown in answer.text) == (200, True), path


async def test_newest_dead_letters(page: Page) -> None:
    """The 20 commands that the instance rejected last are shown with their reasons, newest first, as text."""
    for number in range(25):
        raw = raw_command(address=command_address("acme", "start-run"), headers={MESSAGE_ID: f"<i>{number}"})
        rejection = Rejection(Code.TOO_LARGE, f"<b>{number}{'x' * 300}")
        page.rejections.add(Rejected(raw, rejection, None), page.clock.now())
        page.metrics.dead_letter_stored("TOO_LARGE")
    # Without an id from its sender, none is shown: the position is no number that `dead-letters` takes.
    unnamed = raw_command(address=command_address("acme", "start-run"), headers={MESSAGE_ID: ""})
    page.rejections.add(Rejected(unnamed, Rejection(Code.INVALID_JSON, "no JSON"), None), page.clock.now())
    await page.samples.tick(page.clock.now())
    text = (await page.get("/ui/failed")).text
    ids = re.findall(r'start-run <span class="quiet">(.*?)</span>', text)
    assert ids == ["", *(f"&lt;i&gt;{number}" for number in range(24, 5, -1))]
    for shown in ("&lt;b&gt;24", "timer-service dead-letters list"):
        assert shown in text
    assert "x" * 290 in text
    assert "x" * 300 not in text
    assert re.search(r"TOO_LARGE</th><td [^>]*>0</td><td [^>]*>25</td>", text)


async def test_workers(filled: Page) -> None:
    """The workers of a tenant are listed."""
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


async def test_last_steps(page: Page) -> None:
    """The first page of a workflow with many steps leads to its last ones, and so to the step that is open."""
    workflows = Workflows(page.instance.database, MemoryBroker(), ManualClock())
    task = await workflows.begin()
    keys = [f"step-{number}" for number in range(120)]
    await workflows.report(task, steps=[done(key) for key in keys[:60]])
    await workflows.report(task, steps=[done(key) for key in keys[60:]], seen=seen(*keys))
    await workflows.report(task, waits=[sleep("nap", 1000)])
    first = await page.get("/ui/workflow?tenant=acme&id=order-1")
    (path,) = re.findall(r'href="([^"]*)">Last steps<', first.text)
    last = (await page.get(html.unescape(path))).text
    shown = re.findall(r'<th scope="row" class="id">(.*?)</th>', last)
    assert shown == [*keys[-49:], "nap"]
    assert "Last steps" not in last


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


async def test_always_jobs_and_attempts(page: Page) -> None:
    """A run shows which jobs always run, that it is cancelling, and its attempt after a retry."""
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    await runs.start({"a": [], "clean": ["a"]}, runId="build", always=["clean"])
    await runs.request("CancelRun", runId="build")
    text = (await page.get("/ui/run?tenant=acme&id=build")).text
    assert re.findall(r'<span class="quiet">always</span>|>cancelling</span>', text) == [
        *(">cancelling</span>", '<span class="quiet">always</span>')
    ]
    assert ("data-refresh" in text, "attempt" in text, "timer-service runs" in text) == (True, False, False)
    await runs.report("success", "clean", runId="build")
    await runs.request("RetryRun", runId="build")
    assert ", attempt 2</p>" in (await page.get("/ui/run?tenant=acme&id=build")).text


async def test_failed_chain(page: Page) -> None:
    """The jobs are in the order of the graph. The job that failed is named, and its chain is marked up to its end."""
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    graph: Graph = {"z": [], "y": ["z"], "x": ["y"], "a": ["z"], "report": [run_after("x")]}
    await runs.start(graph, runId="build")
    for job, status in (("z", "success"), ("y", "failed")):
        await runs.report(status, job, runId="build")
    text = (await page.get("/ui/run?tenant=acme&id=build")).text
    rows = re.findall(r'<tr id="job-\d+"( class="chain")?>\s*<th scope="row" class="id">(\w+)</th>', text)
    assert {name for is_marked, name in rows if is_marked} == {"y", "x"}
    names = [name for _, name in rows]
    assert (names[0], set(names[1:3]), names[3:]) == ("z", {"y", "a"}, ["x", "report"])
    assert re.search(r"Failed: <a [^>]*>y</a>; 1 job was skipped because of it", text)
    assert "y did not succeed" in text
    assert Counter(re.findall(r'<path class="(\w+)"', text)) == {"bad": 1, "always": 1}
    assert "3 of 5, 1 failed" in (await page.get("/ui/runs?tenant=acme")).text


async def test_progress_of_a_large_run(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a large run are not all counted."""
    monkeypatch.setattr("timer_service.ui.views.runs.MOST_COUNTED", 20)
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    await runs.start({f"job-{number}": [] for number in range(30)}, runId="large")
    await runs.report("success", "job-7", runId="large")
    assert "29 open of 29+" in (await page.get("/ui/runs?tenant=acme")).text
    for number in range(15):
        await runs.report("success", f"job-{number}", runId="large")
    assert "15 open of 20+" in (await page.get("/ui/runs?tenant=acme")).text


async def test_large_run(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is too large to draw has pages of jobs, without a graph, from the first one on."""
    monkeypatch.setattr("timer_service.ui.views.runs.PAGE_ROWS", 100)
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    names = [f"job-{number:03d}" for number in range(301)]
    await runs.start({name: [] for name in names}, runId="large")
    pages = [
        (re.findall(r'<th scope="row" class="id">(job-\d+)</th>', text), 'class="edges"' in text)
        async for text in page.follow("/ui/run?tenant=acme&id=large")
    ]
    assert pages == [(names[at : at + 100], False) for at in range(0, 301, 100)]


@pytest.mark.parametrize(("jobs", "is_drawn"), [(33, True), (34, False)])
async def test_run_with_many_needs(page: Page, jobs: int, *, is_drawn: bool) -> None:
    """A run with more than 1,000 needs is not drawn."""
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    upstream = [f"first-{number:02d}" for number in range(30)]
    needs = {f"job-{number:02d}": upstream for number in range(jobs)}
    await runs.start({**{name: [] for name in upstream}, **needs}, runId="many")
    text = (await page.get("/ui/run?tenant=acme&id=many")).text
    assert ('class="edges"' in text, "too many jobs or needs" in text) == (is_drawn, not is_drawn)


async def test_run_of_several_pages(page: Page) -> None:
    """A graph has the jobs of all pages of the query, and each job once."""
    runs = Runs(page.instance.database, MemoryBroker(), ManualClock())
    names = [f"job-{number:02d}" for number in range(60)]
    await runs.start({**{name: [] for name in names}, "last": names}, runId="wide")
    text = (await page.get("/ui/run?tenant=acme&id=wide")).text
    assert len(re.findall(r'<a class="box ', text)) == 61
    assert "and 52 more" in text
    assert len(re.findall(r'<path d="M', text.partition('class="edges"')[2])) == 60


@pytest.mark.slow
async def test_pages_on_postgres(postgres: PostgresDatabase, clock: ManualClock) -> None:
    """Each page can be read from PostgreSQL too."""
    await page_data.fill(postgres, NOW, jobs=8)
    page = Page(postgres, clock)
    for view in VIEWS:
        answer = await page.get(f"/ui/{view.path}{'?tenant=acme' if 'tenant' in view.parameters else ''}")
        assert answer.status == (400 if view.path in ITEMS.values() else 200), view.path
    for path in ("search?id=x", "timers?tenant=acme&prefix=x&state=Failed"):
        assert HOSTILE[8] in (await page.get(f"/ui/{path}")).text
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
    assert rows[1][:6] == ["2026-08-23 09:00:00 UTC", last, "0", "7", "1,993", "none yet"]
    assert "there is no zone &lt;script&gt;" in rows[1][6]
    assert "2026-11-21 09:00:42 UTC in 42 s" in rows[1][6]
    assert "Open backfills" not in (await filled.get("/ui/schedule?tenant=acme&id=weekdays")).text


def texts(row: str) -> list[str]:
    """Return the text of each cell of a row."""
    cells = [re.sub(r"<[^>]*>", "", each) for each in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", row, re.DOTALL)]
    return [" ".join(each.split()) for each in cells]
