"""The pages of timers."""

import html
import re

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW
from tests.harness.page import Page
from tests.harness.timers import put_timers
from timer_service.core.values.message import Position
from timer_service.timers.messages import State
from timer_service.timers.rules import Timer
from timer_service.ui.links import link


async def put(page: Page, *timers: Timer) -> None:
    async with page.instance.database.transaction() as tx:
        await put_timers(tx, timers)


def calls(text: str) -> list[str]:
    """Return the ids of the timers in a list, as shown."""
    return re.findall(r'<th scope="row" class="id"><a [^>]*>(.*?)</a>', text)


async def test_tenants(page: Page) -> None:
    """Without a tenant, the page lists the tenants that have timers, page by page."""
    await put(page, *(scheduled(tenant=f"tenant-{number:03d}") for number in range(100)))
    first = await page.get("/ui/timers")
    assert len(re.findall(r"tenant=tenant-\d+", first.text)) == 50
    assert "/ui/timers?after=tenant-049" in first.text
    second = await page.get("/ui/timers?after=tenant-049")
    assert re.findall(r"tenant=tenant-(\d+)", second.text) == [f"{number:03d}" for number in range(50, 100)]
    assert "after=" not in second.text


async def test_list(page: Page) -> None:
    """The list shows pages of timers in order of due time."""
    names = [f"call-{number:03d}" for number in range(70)]
    await put(page, *(scheduled(each, NOW + at, Position(1, at + 1)) for at, each in enumerate(names)))
    assert [calls(text) async for text in page.follow("/ui/timers?tenant=acme")] == [names[:50], names[50:]]
    assert 'Scheduled <span class="num quiet">70</span>' in (await page.get("/ui/timers?tenant=acme")).text


async def test_filters(page: Page) -> None:
    """Timers are found by the beginning of their ids, state, due range and correlation id."""
    await put(
        page,
        scheduled("early", NOW, correlation_id="order-1"),
        scheduled("late", NOW + 60_000, correlation_id="order-2"),
        in_state(State.FAILED, scheduled("broken", NOW + 1, correlation_id="order-2")),
    )
    wanted = {
        "prefix=la": ["late"],
        "prefix=late": ["late"],
        "prefix=late&state=Failed": [],
        "prefix=l&correlation=order-2": ["late"],
        "prefix=lb": [],
        "state=Failed": ["broken"],
        "due_after=2030-01-01T00:00:30": [],
        "correlation=order-2": ["late", "broken"],
        "correlation=order-2&state=Scheduled": ["late"],
    }
    for query, expected in wanted.items():
        assert calls((await page.get(f"/ui/timers?tenant=acme&{query}")).text) == expected, query


async def test_search_for_ids(page: Page) -> None:
    """Timers are found by the beginning of their ids, in the order of the ids, page by page, whatever their states."""
    names = [f"a-{number:03d}" for number in range(120)]
    timers = [scheduled(each, NOW + 1000 - at, Position(1, at + 1)) for at, each in enumerate(names)]
    await put(page, *timers[:60], *(in_state(State.FAILED, each) for each in timers[60:]), scheduled("b"))
    pages = [calls(text) async for text in page.follow("/ui/timers?tenant=acme&prefix=a-")]
    assert pages == [names[:50], names[50:100], names[100:]]
    failed = [text async for text in page.follow("/ui/timers?tenant=acme&prefix=a-&state=Failed")]
    assert [calls(text) for text in failed] == [names[60:110], names[110:]]
    assert all("timer-service timers retry acme --failed --prefix=a-<" in text for text in failed)


async def test_tabs_keep_filters(page: Page) -> None:
    """The tabs of the states keep all other filters."""
    given = {"correlation": "order-1", "due_after": "1970-01-01T00:00:02", "due_before": "2030-01-01"}
    text = (await page.get("/ui/timers", tenant="acme", state="Failed", **given)).text
    for state in (None, "Scheduled", "Failed"):
        url = link("timers", tenant="acme", state=state, due_after=given["due_after"], due_before=given["due_before"])
        assert f'href="{html.escape(url)}&amp;correlation=order-1"' in text


async def test_command_for_all_failed_timers(page: Page) -> None:
    """The command that fires all failed timers is shown if the list has the same timers, and for no narrower list."""
    await put(page, in_state(State.FAILED, scheduled("call-1", NOW, correlation_id="order-1")))
    path = "/ui/timers?tenant=acme&state=Failed"
    assert "timers retry acme --failed<" in (await page.get(path)).text
    for filters in (
        "correlation=order-1",
        "due_after=2000-01-01",
        "due_before=2100-01-01",
        "prefix=c&correlation=order-1",
    ):
        text = (await page.get(f"{path}&{filters}")).text
        assert calls(text) == ["call-1"]
        assert "timers retry" not in text


async def test_command_for_a_tenant_that_begins_with_a_dash(page: Page) -> None:
    """Options stand before the tenant, which would else count as one."""
    text = (await page.get("/ui/timers?tenant=-y")).text
    assert "timer-service timers schedule --in=10s -- -y call-1<" in text


async def test_the_only_tenant(page: Page) -> None:
    """If one tenant alone has timers, its list is shown at once."""
    await put(page, scheduled(tenant="globex"))
    answer = await page.get("/ui/timers?state=Failed")
    assert (answer.status, answer.headers["location"]) == (303, "/ui/timers?state=Failed&tenant=globex")


async def test_due_range(page: Page) -> None:
    """The due range includes its start and excludes its end, also of a search for ids."""
    await put(page, *(scheduled(f"call-{second}", second * 1000, Position(1, second)) for second in range(1, 5)))
    query = "tenant=acme&due_after=1970-01-01T00:00:02&due_before=1970-01-01T00:00:04"
    text = (await page.get(f"/ui/timers?{query}")).text
    assert calls(text) == ["call-2", "call-3"]
    found = [calls((await page.get(f"/ui/timers?{query}&prefix=call-{number}")).text) for number in range(1, 5)]
    assert found == [[], ["call-2"], ["call-3"], []]
    assert 'value="1970-01-01T00:00:02"' in text


async def test_timer(page: Page) -> None:
    """The page of a timer shows its history, its facts, its data and what an operator can do."""
    timer = scheduled("call-1", NOW, correlation_id="order-1", data='{"note":"<b>"}', causation_id="cmd-1")
    timer = timer._replace(schedule=timer.schedule._replace(expires_at=NOW + 60_000, topic="unpaid"))
    await put(page, in_state(State.FAILED, timer)._replace(last_error="the stream is full"))
    text = (await page.get("/ui/timer?tenant=acme&id=call-1")).text
    assert timer.schedule is not None
    for shown in (
        *(
            'expires</dt><dd class="num"><time datetime="2026-11-21T09:01:00.000Z',
            'causation id</dt><dd class="mono">cmd-1',
            'topic</dt><dd class="mono">unpaid',
        ),
        *("Given up", "3 attempts so far", "the stream is full", "order-1", timer.schedule.event_id),
        *("&#34;note&#34;: &#34;&lt;b&gt;&#34;", "timer-service timers retry acme call-1"),
    ):
        assert shown in text
    assert "data-refresh" not in text


async def test_nested_data(page: Page) -> None:
    """Indentation makes a page no larger than 1 MiB. The page has the command that shows all data."""
    nested = "[" * 185 + ",".join("0" * 32_000) + "]" * 185
    await put(page, scheduled("deep", data=nested), scheduled("flat", NOW, Position(1, 2), data='[["whole"]]'))
    text = (await page.get("/ui/timer?tenant=acme&id=deep")).text
    assert len(text) < 1024 * 1024
    assert "timer-service timers get acme deep --json<" in text
    text = (await page.get("/ui/timer?tenant=acme&id=flat")).text
    assert "&#34;whole&#34;\n  ]\n]" in text
    assert "timers get" not in text


async def test_scheduled_timer(page: Page) -> None:
    """The page of a timer that is to fire updates itself, and shows how to cancel it."""
    await put(page, scheduled("call-1", NOW + 60_000))
    text = (await page.get("/ui/timer?tenant=acme&id=call-1")).text
    assert "in 1 min" in text
    assert "timer-service timers cancel acme call-1" in text
    assert "data-refresh" in text
    assert "Next attempt" not in text
    assert '<li class="next">' in text


async def test_history_of_a_claimed_and_of_a_cancelled_timer(page: Page) -> None:
    """A timer that is being tried shows when the next attempt may be. One cancelled early will not become due."""
    claimed, cancelled = scheduled("claimed", NOW), in_state(State.CANCELLED, scheduled("cancelled", NOW + 60_000))
    await put(page, claimed._replace(available_at=NOW + 30_000, attempt=1), cancelled)
    text = (await page.get("/ui/timer?tenant=acme&id=claimed")).text
    assert re.search(r"Next attempt, or end of the current one</p>.*in 30 s", text, re.DOTALL)
    assert '<li class="next">' not in (await page.get("/ui/timer?tenant=acme&id=cancelled")).text


async def test_failures_of_many_tenants(page: Page) -> None:
    """The page of failures has 10 tenants of each kind, and a page of one kind has all. Large counts are cut."""
    names = [f"tenant-{number:02}" for number in range(12)]
    timers = [scheduled(tenant=each) for each in names]
    timers += [scheduled(f"call-{number}", NOW, Position(1, number + 9), tenant=names[0]) for number in range(1000)]
    await put(page, *(in_state(State.FAILED, each) for each in timers))
    text = (await page.get("/ui/failed")).text
    found = re.findall(r'tenant=(tenant-\d+)&amp;state=Failed.*?class="end num">(.*?)<', text, re.DOTALL)
    assert found == [(names[0], "1,000+"), *((each, "1") for each in names[1:10])]
    assert "/ui/failed?kind=timers&amp;after=tenant-09" in text
    assert len(re.findall("state=Failed", (await page.get("/ui/failed?kind=timers")).text)) == 12


async def test_many_timers_with_one_correlation_id(page: Page) -> None:
    """A search for a correlation id reads some timers at a time, and shows each of those that have it once."""
    names = [f"call-{number:03d}" for number in range(601)]
    wanted = [*names[:60], names[600]]
    timers = [scheduled(each, NOW + at, Position(1, at + 1)) for at, each in enumerate(names) if each not in wanted]
    timers += [
        scheduled(each, NOW + at, Position(1, at + 1), correlation_id="o")
        for at, each in enumerate(names)
        if each in wanted
    ]
    await put(page, *timers)
    path = "/ui/timers?tenant=acme&correlation=o"
    pages = [(calls(text), "Searched 500 timers" in text) async for text in page.follow(path)]
    assert [found for found, _ in pages] == [wanted[:50], wanted[50:60], wanted[60:]]
    assert pages[0][1]
