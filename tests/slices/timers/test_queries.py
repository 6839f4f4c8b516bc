import asyncio
import base64
import json
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.cases import case
from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.timers import Timers
from tests.harness.wiring import MAX_ATTEMPTS
from timer_service.adapters.memory import FEATURES, MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Parameters, Reader, Row
from timer_service.core.values.errors import Code
from timer_service.core.values.instant import LATEST
from timer_service.core.values.stored_json import RawJson
from timer_service.timers.messages import ListTimers, State
from timer_service.timers.queries import QUERIES

DUE = after(minutes=1)
LATER = after(minutes=2)


def calls(page: Any) -> list[str]:
    return [each["serviceCallId"] for each in page["timers"]]


async def create_one_in_each_state(timers: Timers) -> None:
    """Create a timer in each state, due in the order of their names."""
    await timers.fail("a failed")
    await timers.schedule("b reached", after(minutes=10))
    await timers.schedule("bb expired", after(minutes=11), lateBy="PT1M")
    timers.clock.set(after(hours=1))
    await timers.tick()
    await timers.schedule("c cancelled", after(hours=2))
    await timers.cancel("c cancelled")
    await timers.schedule("d scheduled", after(hours=3))


STATES = {
    "a failed": "Failed",
    "b reached": "Reached",
    "bb expired": "Expired",
    "c cancelled": "Cancelled",
    "d scheduled": "Scheduled",
}


async def all_pages(timers: Timers, limit: int, **filters: Any) -> list[list[str]]:
    """Return the calls of all pages of a list."""
    pages: list[list[str]] = []
    query = {**filters, "limit": limit}
    while True:
        page = await timers.ask("list-timers", query)
        pages.append(calls(page))
        if "cursor" not in page:
            return pages
        query["cursor"] = page["cursor"]


# get-timer


async def test_get(timers: Timers) -> None:
    """The view of a timer has all its values. Unknown values are left out."""
    await timers.schedule(due_at=DUE, data=[1, None], envelope={"correlationId": "corr-1"})
    assert await timers.ask("get-timer", {"serviceCallId": "call-1"}) == {
        "tenantId": "acme",
        "serviceCallId": "call-1",
        "dueAt": iso(DUE),
        "state": "Scheduled",
        "registeredAt": iso(NOW),
        "attempt": 0,
        "correlationId": "corr-1",
        "data": [1, None],
    }


async def test_get_in_every_state(timers: Timers) -> None:
    """A timer shows when it fired or expired, or its error, and the number of attempts."""
    await create_one_in_each_state(timers)
    views = {call: await timers.ask("get-timer", {"serviceCallId": call}) for call in STATES}
    assert {call: view["state"] for call, view in views.items()} == STATES
    assert [(call, view["reachedAt"]) for call, view in views.items() if "reachedAt" in view] == [
        ("b reached", iso(after(hours=1)))
    ]
    assert [(call, view["expiredAt"]) for call, view in views.items() if "expiredAt" in view] == [
        ("bb expired", iso(after(hours=1)))
    ]
    assert [(call, view["lastError"]) for call, view in views.items() if "lastError" in view] == [
        ("a failed", "refused")
    ]
    assert [view["attempt"] for view in views.values()] == [MAX_ATTEMPTS, 1, 1, 0, 0]


@pytest.mark.parametrize(("data", "shown"), [({"data": None}, True), ({}, False)])
async def test_get_null_data(timers: Timers, data: dict[str, Any], shown: bool) -> None:  # noqa: FBT001
    """The view distinguishes null data from no data."""
    await timers.schedule(**data)
    assert ("data" in await timers.ask("get-timer", {"serviceCallId": "call-1"})) is shown


@pytest.mark.parametrize(("tenant", "call"), [("acme", "unknown"), ("other", "call-1")], ids=lambda value: value)
async def test_get_not_found(timers: Timers, tenant: str, call: str) -> None:
    """An unknown timer and the timer of another tenant are not found."""
    await timers.schedule()
    answer = await timers.ask("get-timer", {"serviceCallId": call}, tenant=tenant)
    assert answer == {"error": {"code": "NOT_FOUND", "message": f"no timer {call!r}"}}


# list-timers


async def test_list_every_state(timers: Timers) -> None:
    """The list shows timers of all states in order of due time, as get-timer shows them."""
    await create_one_in_each_state(timers)
    page = await timers.ask("list-timers")
    assert calls(page) == sorted(STATES)
    assert page["timers"] == [await timers.ask("get-timer", {"serviceCallId": call}) for call in sorted(STATES)]
    assert "cursor" not in page


async def test_list_one_state(timers: Timers) -> None:
    """A list of one state has only timers of that state."""
    await create_one_in_each_state(timers)
    found = {call: calls(await timers.ask("list-timers", {"state": state})) for call, state in STATES.items()}
    assert found == {call: [call] for call in STATES}


async def test_list_by_due_time(timers: Timers) -> None:
    """`dueAfter` is inclusive and `dueBefore` is exclusive. Both can be combined with a state."""
    for call, due_at in {"d": LATER, "b": DUE, "a": DUE - 1, "c": DUE}.items():
        await timers.schedule(call, due_at)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "abcd"),
        ({"dueBefore": iso(DUE)}, "a"),
        ({"dueBefore": iso(DUE + 1)}, "abc"),
        ({"dueAfter": iso(DUE)}, "bcd"),
        ({"dueAfter": iso(DUE + 1)}, "d"),
        ({"dueAfter": iso(DUE), "dueBefore": iso(DUE)}, ""),
        ({"dueAfter": iso(DUE), "dueBefore": iso(LATER)}, "bc"),
        ({"dueAfter": "2026-11-21T10:01:00.000001+01:00"}, "d"),
        ({"dueAfter": iso(LATER), "dueBefore": iso(NOW)}, ""),
        ({"dueAfter": iso(0), "dueBefore": iso(LATEST)}, "abcd"),
        ({"state": None, "dueBefore": None, "dueAfter": None, "cursor": None}, "abcd"),
    ]
    for filters, wanted in cases:
        for asked in (filters, {**filters, "state": "Scheduled"}):
            assert calls(await timers.ask("list-timers", asked)) == list(wanted), asked


@pytest.mark.parametrize("due_at", [0, LATEST])
async def test_earliest_and_latest_due_times(timers: Timers, due_at: int) -> None:
    """Timers with the earliest and the latest possible due time are listed, also page by page."""
    for call in "abc":
        await timers.schedule(call, due_at)
    assert await all_pages(timers, 1) == [["a"], ["b"], ["c"]]
    assert calls(await timers.ask("list-timers", {"dueAfter": iso(due_at)})) == ["a", "b", "c"]


async def test_list_of_each_tenant(timers: Timers) -> None:
    """A tenant sees only its own timers. A tenant without timers gets an empty page."""
    await timers.schedule("mine")
    await timers.schedule("theirs", tenant="other")
    assert calls(await timers.ask("list-timers")) == ["mine"]
    assert await timers.ask("list-timers", tenant="nobody") == {"timers": []}


async def test_pages(timers: Timers) -> None:
    """The pages together have each timer once, in order, also with equal due times. Only the last has no cursor."""
    wanted = [f"call-{number:02}" for number in range(12)]
    for number, call in enumerate(reversed(wanted)):
        timers.send(schedule_timer(call, DUE + (11 - number) // 5))
    await timers.consume()
    for limit in (1, 2, 3, 4, 6, 7, 12, 13):
        with case(limit):
            pages = await all_pages(timers, limit)
            assert pages == [wanted[at : at + limit] for at in range(0, 12, limit)]


@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600", '"', "\\"])
async def test_cursor_works_for_every_call_id(timers: Timers, character: str) -> None:
    """A cursor works for every call id: the longest id and ids in any script."""
    wanted = [f"{number}{character * 199}" for number in range(3)]
    for call in wanted:
        await timers.schedule(call, DUE)
    assert await all_pages(timers, 1) == [[call] for call in wanted]


@pytest.mark.parametrize("filters", [{"state": "Scheduled"}, {"dueAfter": iso(DUE)}, {"dueBefore": iso(LATER)}])
async def test_pages_keep_their_filters(timers: Timers, filters: dict[str, Any]) -> None:
    """A cursor that is sent with the same filters continues in the filtered list."""
    for call, due_at in {"a": DUE - 1, "b": DUE, "c": DUE, "d": DUE, "e": LATER}.items():
        await timers.schedule(call, due_at)
    await timers.cancel("c")
    whole = calls(await timers.ask("list-timers", filters))
    assert [call for page in await all_pages(timers, 1, **filters) for call in page] == whole
    assert 3 <= len(whole) <= 4


async def test_cursor_before_due_after(timers: Timers) -> None:
    """A cursor that lies before `dueAfter` does not bypass the filter."""
    for call, due_at in {"a": NOW, "b": DUE, "c": LATER}.items():
        await timers.schedule(call, due_at)
    page = await timers.ask("list-timers", {"limit": 1})
    again = await timers.ask("list-timers", {"cursor": page["cursor"], "dueAfter": iso(LATER)})
    assert calls(again) == ["c"]


@pytest.mark.parametrize("state", [None, "Scheduled"])
async def test_pages_while_the_timers_change(timers: Timers, state: str | None) -> None:
    """If timers change between pages, the timers that do not change are listed once each and in order."""
    stays = [f"stays-{number}" for number in range(9)]
    for number, call in enumerate(stays):
        await timers.schedule(call, DUE + number * 10)
        await timers.schedule(f"goes-{number}", DUE + number * 10)
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3} if state is None else {"limit": 3, "state": state}
    for number in range(100):
        page = await timers.ask("list-timers", query)
        seen += calls(page)
        if "cursor" not in page:
            break
        query["cursor"] = page["cursor"]
        await timers.schedule(f"early-{number}", NOW)
        await timers.tick()
        await timers.schedule(f"late-{number % 3}", DUE + 90)
        await timers.schedule(f"same-{number % 3}", DUE + 40)
        await timers.cancel(f"goes-{number % 9}")
        await timers.schedule(f"goes-{(number + 4) % 9}", after(days=-1))
        await timers.tick()
    assert [call for call in seen if call.startswith("stays")] == stays
    assert len(seen) == len(set(seen))


class InterruptedReader:
    """A reader that calls `interrupt` after each read."""

    def __init__(self, reader: Reader, interrupt: Callable[[], Awaitable[object]]) -> None:
        self._reader = reader
        self._interrupt = interrupt

    async def fetch(self, sql: str, parameters: Parameters = MappingProxyType({})) -> Sequence[Row]:
        rows = await self._reader.fetch(sql, parameters)
        await self._interrupt()
        return rows

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        rows = await self._reader.fetch_each(sql, many)
        await self._interrupt()
        return rows


@pytest.mark.parametrize("change", ["fires", "is retried"])
async def test_page_is_one_snapshot(timers: Timers, change: str) -> None:
    """A timer that changes its state during the read of a page is listed exactly once."""
    await timers.schedule("stays", LATER)
    if change == "fires":
        await timers.schedule("changes", NOW)
    else:
        await timers.fail("changes")
    interrupt = timers.tick if change == "fires" else lambda: timers.retry("changes")
    reader = InterruptedReader(timers.database.queries, interrupt)
    (answer,) = (route.answer for route in QUERIES if route.name == "list-timers")
    page = await answer(reader, "acme", ListTimers(), timers.clock.now())
    assert isinstance(page, RawJson)
    assert calls(json.loads(page.text)) == ["changes", "stays"]


async def test_page_of_another_tenant_with_the_same_cursor(timers: Timers) -> None:
    """A cursor of one tenant shows another tenant only its own timers."""
    for call in "abc":
        await timers.schedule(call, DUE)
    await timers.schedule("x", DUE, tenant="other")
    cursor = (await timers.ask("list-timers", {"limit": 1}))["cursor"]
    assert calls(await timers.ask("list-timers", {"cursor": cursor}, tenant="other")) == ["x"]


async def test_default_and_largest_page(timers: Timers) -> None:
    """A page has 100 timers by default and 1000 timers at most."""
    for number in range(1001):
        timers.send(schedule_timer(f"call-{number:04}", DUE))
    await timers.consume()
    sizes = [len((await timers.ask("list-timers", query))["timers"]) for query in ({}, {"limit": 1000})]
    assert sizes == [100, 1000]


@pytest.mark.parametrize(("count", "size"), [(40, 60_000), (1000, 0)])
async def test_page_fits_into_a_message(timers: Timers, count: int, size: int) -> None:
    """A page of large timers fits into a message of 1 MiB, and its cursor leads to the other timers."""
    wanted = [f"{number:03}{chr(0x1F600) * 190}" for number in range(count)]
    for call in wanted:
        timers.send(schedule_timer(call, DUE, data="x" * size, envelope={"correlationId": call}))
    await timers.consume()
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 1000}
    while True:
        answered = await timers.queries.answer("list-timers", "acme", json.dumps(query).encode())
        assert len(answered.body) <= FEATURES.max_message_bytes
        page = json.loads(answered.body)
        seen += calls(page)
        if "cursor" not in page:
            break
        query["cursor"] = page["cursor"]
    assert seen == wanted


async def test_list_of_large_timers_reads_little(timers: Timers) -> None:
    """A list of 1,000 large timers reads only little more than it shows."""
    for number in range(600):
        timers.send(schedule_timer(f"call-{number:03}", DUE, data=["x" * 70] * 800))
    await timers.consume()
    tracemalloc.start()
    try:
        await timers.queries.answer("list-timers", "acme", b'{"limit": 1000}')
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024 * 1024, f"{peak / 1024 / 1024:.1f} MiB"


# count-timers


async def test_count(timers: Timers) -> None:
    """The counts show timers by state, overdue timers, and the earliest due time."""
    await create_one_in_each_state(timers)
    await timers.schedule("overdue", after(minutes=59))
    await timers.schedule("due this moment", timers.clock.now())
    await timers.schedule("others'", 0, tenant="other")
    assert await timers.ask("count-timers") == {
        "counts": {"Scheduled": 3, "Reached": 1, "Expired": 1, "Cancelled": 1, "Failed": 1},
        "overdue": 1,
        "oldestDue": iso(after(minutes=59)),
        "exact": True,
    }


async def test_count_of_a_tenant_without_timers(timers: Timers) -> None:
    """For a tenant without timers all counts are 0 and there is no due time."""
    await timers.schedule(tenant="other")
    assert await timers.ask("count-timers") == {
        "counts": dict.fromkeys(State, 0),
        "overdue": 0,
        "exact": True,
    }


# Rejected queries


@pytest.mark.parametrize("name", ["list-timers", "count-timers"])
async def test_empty_body(timers: Timers, name: str) -> None:
    """An empty body means the same as an empty object."""
    for body in (b"", b"{}", b" {} \n"):
        answered = await timers.queries.answer(name, "acme", body)
        assert (answered.code, answered.message) == (None, ""), body
        assert json.loads(answered.body) == await timers.ask(name, {}), body


@pytest.mark.parametrize("name", ["get-timer", "list-timers", "count-timers"])
async def test_not_json(timers: Timers, name: str) -> None:
    """A body that is not JSON is rejected as INVALID_JSON."""
    for body in (b"{", b"\xff", b"{} {}", b'{"limit": NaN}', b"[" * 10_000, b" "):
        answered = await timers.queries.answer(name, "acme", body)
        error = json.loads(answered.body)["error"]
        assert answered.code is Code.INVALID_JSON, body
        assert (error["code"], error["message"]) == ("INVALID_JSON", answered.message)
        assert error["message"].startswith("the body is not JSON")


async def test_wrong_field(timers: Timers) -> None:
    """A wrong, missing or unknown field is rejected with its name and the reason."""
    wrong: list[tuple[str, Any, str]] = [
        ("get-timer", {}, "serviceCallId"),
        ("get-timer", {"service_call_id": "call-1"}, "serviceCallId"),
        ("get-timer", {"serviceCallId": ""}, "serviceCallId"),
        ("get-timer", {"serviceCallId": "a\n"}, "serviceCallId"),
        ("get-timer", {"serviceCallId": 7}, "serviceCallId"),
        ("get-timer", {"serviceCallId": "call-1", "tenantId": "other"}, "tenantId"),
        ("list-timers", {"sate": "Failed"}, "sate"),
        ("list-timers", {"state": "failed"}, "state"),
        ("list-timers", {"limit": 0}, "limit"),
        ("list-timers", {"limit": 1001}, "limit"),
        ("list-timers", {"limit": -1}, "limit"),
        ("list-timers", {"limit": "many"}, "limit"),
        ("list-timers", {"limit": 1.5}, "limit"),
        ("list-timers", {"dueBefore": "tomorrow"}, "dueBefore"),
        ("list-timers", {"dueAfter": "2026-11-21T09:00:00"}, "dueAfter"),
        ("list-timers", {"dueAfter": NOW}, "dueAfter"),
        ("list-timers", {"due_after": iso(NOW)}, "due_after"),
        ("list-timers", {"cursor": "x" * 10_000}, "cursor"),
        ("list-timers", {"cursor": 7}, "cursor"),
        ("count-timers", {"state": "Failed"}, "state"),
        ("count-timers", [], "(body)"),
        ("list-timers", None, "(body)"),
    ]
    for name, query, path in wrong:
        answered = await timers.queries.answer(name, "acme", json.dumps(query).encode())
        error = json.loads(answered.body)["error"]
        assert answered.code is Code.INVALID_PAYLOAD, query
        assert (error["code"], error["message"]) == ("INVALID_PAYLOAD", answered.message)
        assert path in [each["path"] for each in error["errors"]], query
        assert all(each["reason"] for each in error["errors"])


def cursor_of(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


async def test_invalid_cursor(timers: Timers) -> None:
    """An invalid cursor is rejected with the name of the field, whatever it contains."""
    await timers.schedule()
    for cursor in (
        "",
        "x",
        "é",
        "\0",
        "eyJh",
        cursor_of([]),
        cursor_of(7),
        cursor_of(None),
        cursor_of([1]),
        cursor_of(["1", "a"]),
        cursor_of([1, 2]),
        cursor_of([1.5, "a"]),
        cursor_of([1, "a", 2]),
        cursor_of({"1": 1, "2": 2}),
        cursor_of([2**63, "a"]),
        cursor_of([-(2**63) - 1, "a"]),
        cursor_of([1, "\ud800"]),
        base64.urlsafe_b64encode(b"[" * 700).decode(),
        base64.urlsafe_b64encode(b"\xff").decode(),
    ):
        answer = await timers.ask("list-timers", {"cursor": cursor})
        assert answer["error"]["code"] == "INVALID_PAYLOAD", cursor
        assert [each["path"] for each in answer["error"]["errors"]] == ["cursor"]


async def test_queries_write_nothing(timers: Timers) -> None:
    """Queries change nothing in the database."""
    await create_one_in_each_state(timers)
    before = await timers.database.reader.fetch("SELECT * FROM timer_schedules ORDER BY service_call_id")
    for name in timers.queries.names:
        await timers.ask(name, {"serviceCallId": "a failed"} if name == "get-timer" else {})
    assert await timers.database.reader.fetch("SELECT * FROM timer_schedules ORDER BY service_call_id") == before


async def test_database_unavailable(
    sqlite: SqliteDatabase, tmp_path: Path, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """While the database is unreadable, every query returns an internal error that says so."""
    timers = Timers(sqlite, memory_broker, clock)
    await timers.schedule()
    for file in (tmp_path / "timers.db", tmp_path / "timers.db-wal"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    for name, query in {"get-timer": {"serviceCallId": "call-1"}, "list-timers": {}, "count-timers": {}}.items():
        error = (await timers.ask(name, query))["error"]
        assert error["code"] == "INTERNAL"
        assert error["message"] == "the database is not available at the moment"


async def test_count_is_one_snapshot(timers: Timers) -> None:
    """While timers fire, each timer is counted in exactly one state."""
    for call in range(300):
        timers.send(schedule_timer(f"call-{call}"))
    await timers.consume()
    small_batches = Timers(timers.database, timers.broker, timers.clock, batch_size=10)
    firing = asyncio.create_task(small_batches.tick())
    totals = set()
    while not firing.done():
        counts = (await timers.ask("count-timers"))["counts"]
        totals.add(sum(counts.values()))
    await firing
    assert totals == {300}
