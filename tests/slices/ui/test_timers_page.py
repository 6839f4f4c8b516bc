"""The pages of timers."""

import re

import pytest

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW
from tests.harness.page import Page
from tests.harness.timers import Timers, put_timers
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.values.message import Position
from timer_service.timers.messages import State
from timer_service.timers.rules import Timer

HOSTILE = ["<script>alert(1)</script>", "a\u202eb", '"><img src=x>', "{{ 7*7 }}", "../x?y=1&z=#", "' OR 1=1 --"]
SHOWN = ["&lt;script&gt;alert(1)&lt;/script&gt;", "a\\u202eb", "&#34;&gt;&lt;img src=x&gt;", "{{ 7*7 }}", "../x?y=1"]


async def put(page: Page, *timers: Timer) -> None:
    async with page.instance.database.transaction() as tx:
        await put_timers(tx, timers)


def calls(text: str) -> list[str]:
    """Return the ids of the timers in a list, as shown."""
    return re.findall(r'<th scope="row" class="id"><a [^>]*>(.*?)</a>', text)


async def test_no_timers(page: Page) -> None:
    """An empty list says what to do next."""
    text = (await page.get("/ui/timers")).text
    assert "No tenant has timers." in text
    assert "timer-service timers schedule acme call-1 --in 10s" in text
    text = (await page.get("/ui/timers?tenant=acme")).text
    assert "Tenant acme has no timers." in text
    assert "No timer matches." in (await page.get("/ui/timers?tenant=acme&state=Failed")).text
    text = (await page.get("/ui/timers?tenant=acme&call=x")).text
    assert "No such timer." in text
    assert "no timer with this call id. Settled" in text
    text = (await page.get("/ui/timers?tenant=acme&call=x&correlation=y")).text
    assert "no timer with this call id that matches the other filters. Settled" in text


async def test_tenants(page: Page) -> None:
    """Without a tenant, the page lists the tenants that have timers, page by page."""
    await put(page, *(scheduled(tenant=f"tenant-{number:03d}") for number in range(60)))
    first = await page.get("/ui/timers")
    assert len(re.findall(r"tenant=tenant-\d+", first.text)) == 50
    assert "/ui/timers?after=tenant-049" in first.text
    second = await page.get("/ui/timers?after=tenant-049")
    assert re.findall(r"tenant=tenant-(\d+)", second.text) == [f"{number:03d}" for number in range(50, 60)]


async def test_list(page: Page) -> None:
    """The list shows a page of timers in order of due time, and leads to the next page."""
    await put(page, *(scheduled(f"call-{number:03d}", NOW + number, Position(1, number + 1)) for number in range(70)))
    first = await page.get("/ui/timers?tenant=acme")
    assert calls(first.text) == [f"call-{number:03d}" for number in range(50)]
    (following,) = re.findall(r'rel="next" href="([^"]*)"', first.text)
    second = await page.get(following.replace("&amp;", "&"))
    assert calls(second.text) == [f"call-{number:03d}" for number in range(50, 70)]
    assert "First page" in second.text


async def test_filters(page: Page) -> None:
    """Timers are found by call id, state, due range and correlation id."""
    await put(
        page,
        scheduled("early", NOW, correlation_id="order-1"),
        scheduled("late", NOW + 60_000, correlation_id="order-2"),
        in_state(State.FAILED, scheduled("broken", NOW + 1, correlation_id="order-2")),
    )
    wanted = {
        "call=late": ["late"],
        "call=late&state=Failed": [],
        "state=Failed": ["broken"],
        "due_after=2030-01-01T00:00:30": [],
        "correlation=order-2": ["broken", "late"],
        "correlation=order-2&state=Scheduled": ["late"],
    }
    for query, expected in wanted.items():
        assert calls((await page.get(f"/ui/timers?tenant=acme&{query}")).text) == expected, query


async def test_due_range(page: Page) -> None:
    """The due range includes its start and excludes its end, also of a search for a call id."""
    await put(page, *(scheduled(f"call-{second}", second * 1000, Position(1, second)) for second in range(1, 5)))
    query = "tenant=acme&due_after=1970-01-01T00:00:02&due_before=1970-01-01T00:00:04"
    text = (await page.get(f"/ui/timers?{query}")).text
    assert calls(text) == ["call-2", "call-3"]
    found = [calls((await page.get(f"/ui/timers?{query}&call=call-{number}")).text) for number in range(1, 5)]
    assert found == [[], ["call-2"], ["call-3"], []]
    assert 'value="1970-01-01T00:00:02"' in text


async def test_correlation_id_is_searched_in_portions(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for a correlation id reads some timers, says how many, and goes on where it stopped."""
    monkeypatch.setattr("timer_service.ui.views.timers._SEARCHED", 30)
    timers = [scheduled(f"call-{number:02d}", NOW + number, Position(1, number + 1)) for number in range(40)]
    await put(page, *timers[:-1], scheduled("wanted", NOW + 99, Position(1, 99), correlation_id="order-1"))
    first = await page.get("/ui/timers?tenant=acme&correlation=order-1")
    assert "Searched 30 timers" in first.text
    assert calls(first.text) == []
    (following,) = re.findall(r'rel="next" href="([^"]*)">Search on', first.text)
    assert calls((await page.get(following.replace("&amp;", "&"))).text) == ["wanted"]


async def test_hostile_ids(page: Page) -> None:
    """Whatever an id contains, it is shown as text, and its link leads to its timer."""
    await put(
        page,
        *(
            in_state(State.FAILED, scheduled(call, NOW + number, correlation_id=call))._replace(last_error=call)
            for number, call in enumerate(HOSTILE)
        ),
    )
    text = (await page.get("/ui/timers?tenant=acme")).text
    for shown in SHOWN:
        assert shown in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    links = re.findall(r'href="(/ui/timer\?[^"]*)"', text)
    assert len(links) == len(HOSTILE)
    for call, path in zip(HOSTILE, links, strict=True):
        one = await page.get(path.replace("&amp;", "&"))
        assert one.status == 200, call
        assert "<script>alert" not in one.text
        assert "timer-service timers retry" in one.text


async def test_timer(page: Page) -> None:
    """The page of a timer shows its history, its facts, its data and what an operator can do."""
    timer = scheduled("call-1", NOW, correlation_id="order-1", data='{"note":"<b>"}')
    await put(page, in_state(State.FAILED, timer)._replace(last_error="the stream is full"))
    text = (await page.get("/ui/timer?tenant=acme&id=call-1")).text
    assert timer.schedule is not None
    for shown in (
        *("Given up", "3 attempts so far", "the stream is full", "order-1", timer.schedule.event_id),
        *("&#34;note&#34;: &#34;&lt;b&gt;&#34;", "timer-service timers retry acme call-1"),
    ):
        assert shown in text
    assert "data-refresh" not in text


async def test_scheduled_timer(page: Page) -> None:
    """The page of a timer that is to fire updates itself, and shows how to cancel it."""
    await put(page, scheduled("call-1", NOW + 60_000))
    text = (await page.get("/ui/timer?tenant=acme&id=call-1")).text
    assert "in 1 min" in text
    assert "timer-service timers cancel acme call-1" in text
    assert "data-refresh" in text


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/ui/timer?tenant=acme&id=nope", 404, "There is no timer “nope” of tenant acme."),
        ("/ui/timer?tenant=acme", 400, "This page needs “tenant” and “id”"),
        ("/ui/timers?tenant=a%20b", 400, "“tenant” must have 1 to 64 letters"),
        ("/ui/timers?tenant=acme&state=failed", 400, "“state” must be one of"),
        ("/ui/timers?tenant=acme&due_after=soon", 400, "“due_after” must be an ISO 8601 instant"),
        ("/ui/timers?tenant=acme&cursor=xyz", 400, "cursor: must be a cursor from a reply"),
        ("/ui/timers?tenant=acme&page=2", 400, "no parameter “page”"),
    ],
)
async def test_wrong_requests(page: Page, path: str, status: int, text: str) -> None:
    """A wrong request gets a page that says what is wrong."""
    answer = await page.get(path)
    assert answer.status == status
    assert text in answer.text


async def test_many_timers_with_one_correlation_id(page: Page) -> None:
    """A search for a correlation id that many timers have shows them page by page, each once."""
    wanted = [f"call-{number:03d}" for number in range(120)]
    timers = (scheduled(each, NOW + at, Position(1, at + 1), correlation_id="o") for at, each in enumerate(wanted))
    await put(page, *timers)
    path, found = "/ui/timers?tenant=acme&correlation=o", []
    while path:
        text = (await page.get(path)).text
        assert len(calls(text)) <= 50
        found += calls(text)
        path = next((each.replace("&amp;", "&") for each in re.findall(r'rel="next" href="([^"]*)"', text)), "")
    assert found == wanted


async def test_deep_data(page: Page) -> None:
    """Data that is nested as deep as a command may be does not break the pages of its tenant."""
    timers = Timers(page.instance.database, MemoryBroker(), page.clock)
    depths = [depth for depth in range(150, 260, 2) if await is_stored(timers, depth)]
    assert max(depths) > 180
    for path in ("timers?tenant=acme", f"timer?tenant=acme&id=deep-{max(depths)}"):
        assert (await page.get(f"/ui/{path}")).status == 200, path


async def is_stored(timers: Timers, depth: int) -> bool:
    """Schedule a timer with nested data. Return whether the service accepted it."""
    data: object = 0
    for _ in range(depth):
        data = [data]
    await timers.schedule(f"deep-{depth}", data=data)
    rows = await timers.database.reader.fetch("SELECT service_call_id FROM timer_schedules")
    return f"deep-{depth}" in {row["service_call_id"] for row in rows}
