"""What all pages have in common: headers, errors, and what they refuse."""

import asyncio
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.harness.clock import NOW
from tests.harness.page import Page
from timer_service.core.due.loop import Loop
from timer_service.core.ports.completion import run_to_completion
from timer_service.core.ports.health import Health
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.http import CONNECTION_SECONDS
from timer_service.ui.views import VIEWS

WAITING = """
INSERT INTO waiting_commands (
    tenant_id, epoch, first_sequence, number_of_commands, done, size, commands, available_at, attempt, last_error
) VALUES (:tenant, 1, :number, :number, :done, 1, CAST('' AS BLOB), :at, 0, :error)
"""
MAIN = [f"/ui/{view.path}" for view in VIEWS if view.name is not None]


@pytest.mark.parametrize(("path", "status"), [*((path, 200) for path in MAIN), ("/ui/nope", 404), ("/ui/?x=1", 400)])
async def test_what_all_pages_have(page: Page, path: str, status: int) -> None:
    """Each page forbids scripts and frames of others, is not stored, sets no cookie, and leads to the other pages."""
    answer = await page.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers
    assert (answer.status, answer.text.count("<h1")) == (status, 1)
    assert (f'<a href="{path}" aria-current="page">' in answer.text) == (status == 200)
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", answer.text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_reads_only(page: Page, method: str) -> None:
    """The page accepts no other method than GET and HEAD."""
    assert (await page.get("/ui/", method=method)).status == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("localhost:9464", 200),
        ("LOCALHOST", 200),
        ("[::1]:9464", 200),
        ("10.0.0.7", 200),
        ("timers.EXAMPLE:9464", 200),
        ("evil.example:9464", 421),
        ("127.0.0.1.evil.example", 421),
        ("[", 421),
        ("", 421),
    ],
)
async def test_host(page: Page, host: str, status: int) -> None:
    """A web site that points its name at this machine cannot read the pages. The name of the settings can be used."""
    page.instance = replace(page.instance, http_host="Timers.example")
    assert (await page.get("/ui/", host=host)).status == status


async def test_static_files(page: Page) -> None:
    """The pages use files of their own. No other file can be read."""
    overview = await page.get("/ui/")
    for name, media_type in (("page.css", "text/css"), ("page.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        assert f'"/ui/static/{name}"' in overview.text
        file = await page.get(f"/ui/static/{name}")
        assert (file.status, file.headers["content-type"].partition(";")[0]) == (200, media_type)
        assert file.headers["x-content-type-options"] == "nosniff"
    assert (await page.get("/ui/static/base.html")).status == 404
    assert (await page.get("/ui/static/..%2froutes.py")).status == 404


async def test_updates_wait_for_slow_answers(page: Page) -> None:
    """An update waits longer than the service keeps a connection: without the database, the overview takes seconds."""
    longest = re.search(r"LONGEST_ANSWER = ([\d_]+)", (await page.get("/ui/static/page.js")).text)
    assert longest is not None
    assert int(longest[1]) > CONNECTION_SECONDS * 1000


async def test_database_is_away(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the database, lists say so. The overview says it too, and still shows the health."""

    async def fail(*_: object) -> None:
        raise DatabaseUnavailableError("the disk is full")

    monkeypatch.setattr(type(page.instance.database.queries), "fetch", fail)
    await shows_outage(page, "the disk is full")


async def shows_outage(page: Page, reason: str) -> None:
    """Check that lists and the overview say that the database does not answer, and why."""
    answer = await page.get("/ui/timers")
    assert (answer.status, reason in answer.text) == (503, True)
    answer = await page.get("/ui/")
    assert (answer.status, "healthy" in answer.text, "all loops ok" in answer.text) == (200, False, True)
    assert re.findall(r'class="reason">(.*?)</span> <span class="quiet">(.*?)<', answer.text) == [
        (reason, "affects database reads of this page")
    ]


async def test_database_does_not_answer(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for all its reads together, and for its turn, until one deadline, also if a read cannot be ended."""
    monkeypatch.setattr("timer_service.ui.reads.SECONDS", 0.1)
    answers = asyncio.Event()
    began = 0

    async def hang(*_: object) -> list[object]:
        nonlocal began
        began += 1
        await run_to_completion(answers.wait())
        return []

    with monkeypatch.context() as hanging:
        hanging.setattr(type(page.instance.database.queries), "fetch", hang)
        await asyncio.gather(*(shows_outage(page, "no answer in time") for _ in range(4)))
        assert began == 2  # the reads that go on have the turns of others
    answers.set()
    assert (await page.get("/ui/timers")).status == 200


async def test_a_failure_shows_no_values(
    page: Page, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is a page without its text, and one line in the log."""

    async def fail(*_: object) -> None:
        raise KeyError("s3cret")

    monkeypatch.setattr(type(page.instance.database.queries), "fetch", fail)
    answer = await page.get("/ui/timers?tenant=acme")
    assert answer.status == 500
    assert "s3cret" not in answer.text
    assert [record.getMessage() for record in caplog.records] == ["page failed"]


async def test_overview_shows_health(page: Page) -> None:
    """The overview begins with what is wrong: each reason once, escaped, with the parts that it impairs."""
    assert "healthy" in (await page.get("/ui/")).text
    page.health |= dict.fromkeys(("events", "queries"), Health.down("stream <b> is missing"))
    page.health["commands"] = Health(reason="the log is slow")
    text = (await page.get("/ui/")).text
    assert "needs attention" in text
    assert "healthy" not in text
    assert re.findall(r'class="reason">(.*?)</span> <span class="quiet">(.*?)<', text) == [
        ("the log is slow", "affects commands"),
        ("stream &lt;b&gt; is missing", "affects events, queries"),
    ]
    assert re.findall(r'status (?:bad|warn)">(\w+)</span></dd>', text) == ["impaired", "down", "down"]


async def test_overview_shows_a_loop_that_hangs(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that hangs needs attention, also if its health does not say so."""
    monkeypatch.setattr(Loop, "stalled", property(lambda _: True))
    text = (await page.get("/ui/")).text
    assert "needs attention" in text
    assert re.findall(r'class="reason">(.*?)</span> <span class="quiet">(.*?)<', text) == [
        ("hangs", "affects loop timers")
    ]
    assert "1 of 1 loops fail" in text


async def test_a_fault_of_a_loop_is_listed_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that is down because of a loop has the same reason as the loop."""
    page.health["events"] = Health.down("loop timers fails: no space left")
    monkeypatch.setattr(Loop, "health", property(lambda _: page.health["events"]))
    assert re.findall(r'class="reason">(.*?)</span> <span class="quiet">(.*?)<', (await page.get("/ui/")).text) == [
        ("no space left", "affects events, loop timers")
    ]


async def test_one_reason_of_many_parts(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reason in two wordings is listed once. Many loops with this reason are counted, not named."""
    page.health["events"] = Health.down("the database is unavailable: no answer in time")
    monkeypatch.setattr(Loop, "health", Health.down("loop timers fails: no answer in time"))
    for count, named in ((3, "loop timers, loop timers, loop timers"), (4, "4 loops")):
        page.loops = [page.loop] * count
        text = (await page.get("/ui/")).text
        assert re.findall(r'class="reason">(.*?)</span> <span class="quiet">(.*?)<', text) == [
            ("the database is unavailable: no answer in time", f"affects events, {named}")
        ]


async def test_verdict_names_the_flows_of_the_role(page: Page) -> None:
    """A healthy instance names what it does: a worker reads no commands."""
    assert "Commands, events and all loops work on this instance." in (await page.get("/ui/")).text
    del page.health["commands"]
    assert "</span> Events and all loops work on this instance." in (await page.get("/ui/")).text


async def test_verdict_names_what_waits(page: Page) -> None:
    """Commands that cannot be applied and rows that are due for long need attention. Workflows wait for workers."""
    page.metrics.overdue("timer_schedules", 2000, 40.2)
    page.metrics.overdue("outbox", 3, 5)
    page.metrics.overdue("workflows", 7, 9000)
    async with page.instance.database.transaction() as tx:
        for tenant, number, done, available_at, error in (
            ("acme", 300, 10, NOW + 1000, "<lock>"),
            ("acme", 10, 0, 0, None),
            ("globex", 1, 0, NOW, "<lock>"),
            ("other", 5, 0, 0, None),
        ):
            row = {"tenant": tenant, "number": number, "done": done, "at": available_at, "error": error}
            await tx.execute(WAITING, row)
    assert re.findall(r'class="reason">(.*?)</span> <span class="quiet">(.*?)<', (await page.get("/ui/")).text) == [
        ("2,000 due rows wait, the oldest for 40 s", "affects timer_schedules"),
        ("301 commands wait: &lt;lock&gt;", "affects tenant acme, tenant globex"),
    ]


async def test_few_requests_read_at_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests read at a time, and the others wait: a page of large rows needs much memory."""
    reading, meeting = Counter[str](), asyncio.Barrier(2)
    most = []

    async def read(*_: object) -> list[object]:
        reading["now"] += 1
        most.append(reading["now"])
        await meeting.wait()
        reading["now"] -= 1
        return []

    monkeypatch.setattr(type(page.instance.database.queries), "fetch", read)
    answers = await asyncio.gather(*(page.get("/ui/timers") for _ in range(6)))
    assert ({each.status for each in answers}, max(most)) == ({200}, 2)


async def test_overview_shows_numbers(page: Page) -> None:
    """The overview shows the numbers of the last hour."""
    await page.samples.tick(page.clock.now() - 30_000)
    page.metrics.counted("timer_schedules", "Scheduled", 12_345)
    page.metrics.overdue("timer_schedules", 0, 0)
    page.metrics.ticked("row-counts", 0.1)
    for number in range(50):
        page.metrics.fired_late("timer_schedules", 0.004 if number < 40 else 4)
    page.metrics.dead_letter_stored("TOO_LARGE")
    await page.samples.tick(page.clock.now())
    text = (await page.get("/ui/")).text
    assert "12,345" in text
    assert "10 min ago" in text  # the first minutes are wide enough to be read
    assert re.search(r'Fired</h3>\s*<p class="figure ">50</p>', text)
    assert re.search(r'Rejected or given up</h3>\s*<p class="figure bad">1</p>', text)
    assert re.search(r'class="figure ">\S+ ms <span class="second">\S+ s</span>', text)
    assert "<polyline" in text
    assert "from due to published, estimated from buckets" in text
    assert re.search(r"counted [^;]*; due and not claimed; at most 0", text)
    overdue, fired = text.index("Overdue timers"), text.index("Timers fired")
    assert "<rect" not in text[overdue:fired]
    assert "<rect" in text[fired:]
