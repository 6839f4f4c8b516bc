import base64
import json
from typing import Any

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.cases import case
from tests.harness.clock import NOW, after, iso
from tests.harness.timers import Timers
from tests.harness.wiring import MAX_ATTEMPTS
from timer_service.core.values.errors import Code
from timer_service.core.values.instant import LATEST

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


async def all_pages(timers: Timers, limit: int) -> list[list[str]]:
    """Return the calls of all pages of a list."""
    pages: list[list[str]] = []
    query: dict[str, Any] = {"limit": limit}
    while True:
        page = await timers.ask("list-timers", query)
        pages.append(calls(page))
        if "cursor" not in page:
            return pages
        query["cursor"] = page["cursor"]


async def test_get(timers: Timers) -> None:
    """The view of a timer has all its values. Unknown values are left out, but not data that is null."""
    await timers.schedule(due_at=DUE, data=[1, None], envelope={"correlationId": "corr-1"})
    await timers.schedule("null", data=None)
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
    assert "data" in await timers.ask("get-timer", {"serviceCallId": "null"})


async def test_every_state(timers: Timers) -> None:
    """A timer shows when it fired or expired, or its error, and its attempts. The list has Scheduled timers first."""
    await create_one_in_each_state(timers)
    views = {call: await timers.ask("get-timer", {"serviceCallId": call}) for call in STATES}
    assert {call: view["state"] for call, view in views.items()} == STATES
    shown = [(call, name, view[name]) for call, view in views.items() for name in view if name in MORE]
    fired_at = iso(after(hours=1))
    assert shown == [
        ("a failed", "lastError", "refused"),
        ("b reached", "reachedAt", fired_at),
        ("bb expired", "expiredAt", fired_at),
    ]
    assert [view["attempt"] for view in views.values()] == [MAX_ATTEMPTS, 1, 1, 0, 0]
    assert await timers.ask("list-timers") == {"timers": list(views.values())[::-1]}
    found = {call: calls(await timers.ask("list-timers", {"state": state})) for call, state in STATES.items()}
    assert found == {call: [call] for call in STATES}


MORE = {"reachedAt", "expiredAt", "lastError"}


async def test_other_tenants(timers: Timers) -> None:
    """No query of a tenant shows a timer of another one, also not with the same id or the other's cursor."""
    for call in "abc":
        await timers.schedule(call, DUE)
    await timers.schedule("x", DUE, tenant="other")
    cursor = (await timers.ask("list-timers", {"limit": 1}))["cursor"]
    assert calls(await timers.ask("list-timers", {"cursor": cursor}, tenant="other")) == ["x"]
    for tenant, call in (("other", "a"), ("acme", "unknown")):
        answer = await timers.ask("get-timer", {"serviceCallId": call}, tenant=tenant)
        assert answer == {"error": {"code": "NOT_FOUND", "message": f"no timer {call!r}"}}
    assert await timers.ask("list-timers", tenant="nobody") == {"timers": []}


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
        ({"dueAfter": iso(DUE), "dueBefore": iso(LATER)}, "bc"),
        ({"dueAfter": "2026-11-21T10:01:00.000001+01:00"}, "d"),
        ({"dueAfter": iso(LATER), "dueBefore": iso(NOW)}, ""),
        ({"dueAfter": iso(0), "dueBefore": iso(LATEST)}, "abcd"),
        ({"state": None, "dueBefore": None, "dueAfter": None, "cursor": None}, "abcd"),
    ]
    for filters, wanted in cases:
        for asked in (filters, {**filters, "state": "Scheduled"}):
            assert calls(await timers.ask("list-timers", asked)) == list(wanted), asked
    first = await timers.ask("list-timers", {"limit": 1})
    again = await timers.ask("list-timers", {"cursor": first["cursor"], "dueAfter": iso(LATER)})
    assert calls(again) == ["d"], "a cursor does not bypass the filter"


async def test_pages(timers: Timers) -> None:
    """The pages together have each timer once, in order, also with equal due times. Only the last has no cursor."""
    wanted = ["earliest", *(f"{number:02}{character * 198}" for number, character in enumerate('x\u00e9😀"\\x'))]
    for call in reversed(wanted[1:]):
        timers.send(schedule_timer(call, DUE + int(call[:2]) // 4))
    await timers.schedule("latest", LATEST)
    await timers.schedule("earliest", 0)
    wanted.append("latest")
    for limit in (1, 2, 3, 7, 8, 9):
        with case(limit):
            assert await all_pages(timers, limit) == [wanted[at : at + limit] for at in range(0, 8, limit)]


async def test_pages_while_the_timers_change(timers: Timers) -> None:
    """If timers change between pages, the others are listed once each and in order, and no timer twice in one state."""
    stays = [f"stays-{number}" for number in range(9)]
    for number, call in enumerate(stays):
        await timers.schedule(call, DUE + number * 10)
        await timers.schedule(f"goes-{number}", DUE + number * 10)
    seen: list[str] = []
    states: list[tuple[str, str]] = []
    query: dict[str, Any] = {"limit": 3}
    for number in range(100):
        page = await timers.ask("list-timers", query)
        seen += calls(page)
        states += [(each["serviceCallId"], each["state"]) for each in page["timers"]]
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
    assert len(states) == len(set(states))


async def test_the_next_timers_are_first(timers: Timers) -> None:
    """A list has the Scheduled timers first, the next one first, and then the others, the latest due time first."""
    for minute in (3, 1, 2):
        await timers.schedule(f"done-{minute}", after(minutes=minute))
    await timers.cancel("done-1")
    timers.clock.set(after(hours=1))
    await timers.tick()
    for minute in (3, 1, 2):
        await timers.schedule(f"next-{minute}", after(hours=1, minutes=minute))
    for limit in (1, 2, 3, 4, 6):
        found = [call for page in await all_pages(timers, limit) for call in page]
        assert found == ["next-1", "next-2", "next-3", "done-3", "done-2", "done-1"], limit
    bounds = {"dueAfter": iso(after(minutes=2)), "dueBefore": iso(after(hours=1, minutes=3))}
    assert calls(await timers.ask("list-timers", bounds)) == ["next-1", "next-2", "done-3", "done-2"]
    assert calls(await timers.ask("list-timers", {"state": "Reached"})) == ["done-3", "done-2"]


async def test_count(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts show timers by state, overdue timers, and the earliest due time. At a limit, they are not exact."""
    await create_one_in_each_state(timers)
    await timers.schedule("overdue", after(minutes=59))
    await timers.schedule("due this moment", timers.clock.now())
    await timers.schedule("others'", 0, tenant="other")
    counts = {"Scheduled": 3, "Reached": 1, "Expired": 1, "Cancelled": 1, "Failed": 1}
    found = await timers.ask("count-timers")
    assert found == {"counts": counts, "overdue": 1, "oldestDue": iso(after(minutes=59)), "exact": True}
    none = {"counts": dict.fromkeys(counts, 0), "overdue": 0, "exact": True}
    assert await timers.ask("count-timers", tenant="nobody") == none
    for most, scheduled, exact in ((4, 3, True), (3, 3, False), (2, 2, False)):
        monkeypatch.setattr("timer_service.timers.queries.MOST_COUNTED", most)
        found = await timers.ask("count-timers")
        assert (found["counts"]["Scheduled"], found["exact"]) == (scheduled, exact)


# Rejected queries


def cursor_of(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


WRONG: list[tuple[str, Any, str]] = [
    ("get-timer", {}, "serviceCallId"),
    ("get-timer", {"service_call_id": "call-1"}, "serviceCallId"),
    ("get-timer", {"serviceCallId": "a\n"}, "serviceCallId"),
    ("get-timer", {"serviceCallId": "call-1", "tenantId": "other"}, "tenantId"),
    ("list-timers", {"sate": "Failed"}, "sate"),
    ("list-timers", {"state": "failed"}, "state"),
    ("list-timers", {"limit": 0}, "limit"),
    ("list-timers", {"limit": 1001}, "limit"),
    ("list-timers", {"limit": 1.5}, "limit"),
    ("list-timers", {"dueBefore": "tomorrow"}, "dueBefore"),
    ("list-timers", {"dueAfter": NOW}, "dueAfter"),
    ("count-timers", {"state": "Failed"}, "state"),
    ("count-timers", [], "(body)"),
    *(
        ("list-timers", {"cursor": cursor}, "cursor")
        for cursor in (
            *("", "x", "é", "\0", "x" * 10_000, 7),
            *map(cursor_of, ([], None, [1], ["1", "a"], [1, 2], [1.5, "a"], {"1": 1}, [2**63, "a"], [1, "\ud800"])),
            base64.urlsafe_b64encode(b"[" * 700).decode(),
            base64.urlsafe_b64encode(b"\xff").decode(),
        )
    ),
]


async def test_wrong_field(timers: Timers) -> None:
    """A wrong, missing or unknown field is rejected with its name and the reason, and so is any invalid cursor."""
    for name, query, path in WRONG:
        answered = await timers.queries.answer(name, "acme", json.dumps(query).encode())
        error = json.loads(answered.body)["error"]
        assert answered.code is Code.INVALID_PAYLOAD, query
        assert (error["code"], error["message"]) == ("INVALID_PAYLOAD", answered.message)
        assert path in [each["path"] for each in error["errors"]], query
        assert all(each["reason"] for each in error["errors"])


@pytest.mark.parametrize("body", [b"{", b"\xff", b"{} {}", b'{"limit": NaN}', b"[" * 10_000, b" "])
async def test_not_json(timers: Timers, body: bytes) -> None:
    """A body that is not JSON is rejected as INVALID_JSON. An empty one means an empty object."""
    answered = await timers.queries.answer("list-timers", "acme", body)
    assert (answered.code, answered.message.startswith("the body is not JSON")) == (Code.INVALID_JSON, True)
    assert (await timers.queries.answer("list-timers", "acme", b"")).code is None


async def test_unreadable_row(timers: Timers) -> None:
    """A timer that cannot be shown ends its query with an internal error, and no other one."""
    await timers.schedule("damaged", DUE)
    await timers.schedule("whole", DUE)
    await timers.sql(f"UPDATE timer_schedules SET due_at = {10**18}, available_at = {10**18} WHERE due_at = {DUE}")
    await timers.schedule("whole", DUE)
    assert (await timers.ask("get-timer", {"serviceCallId": "damaged"}))["error"]["code"] == "INTERNAL"
    assert (await timers.ask("get-timer", {"serviceCallId": "whole"}))["dueAt"] == iso(DUE)
