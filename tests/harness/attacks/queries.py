"""Attacks with queries."""

from collections.abc import Mapping

from tests.harness.attacks.attack import LONG_AFTER, TENANT, Attack, address, body, flood, queries
from tests.harness.attacks.commands import LARGE, LAYERS, STAR, WIDE
from tests.harness.raw_nats import RawMessage, header_block
from timer_service.core.values.paging import write_cursor

_COUNT = f"timer.qry.v1.{TENANT}.count-timers".encode()
_LIST = f"timer.qry.v1.{TENANT}.list-timers".encode()
_INBOX = b"_INBOX.tenant-a.NUMBER"
_LARGE_TIMERS = [
    RawMessage(
        address("ScheduleTimer"),
        body("ScheduleTimer", {"serviceCallId": f"call-{n}", "dueAt": LONG_AFTER, "data": LARGE}),
    )
    for n in range(300)
]
_SMALL_TIMERS = [
    RawMessage(address("ScheduleTimer"), body("ScheduleTimer", {"serviceCallId": f"call-{n}", "dueAt": LONG_AFTER}))
    for n in range(5_000)
]
_RUNS = [
    RawMessage(address("StartRun"), body("StartRun", {"runId": name, "jobs": jobs}))
    for name, jobs in (("star", STAR), ("layers", LAYERS), ("wide", WIDE))
]
_FIRST_WIDE = write_cursor(["wide-0", ""])
_REPLIES = (
    b"_INBOX.tenant-b.guessed",
    b"_INBOX.tenant-a..",
    b"timer.evt.v1.tenant-b.due-time-reached",
    b"$JS.API.STREAM.DELETE.TIMER_CMD",
    _COUNT,
    b"_INBOX.tenant-a." + b"x" * 3_000,
    b"_INBOX.\xff",
    b">",
)

QUERIES: Mapping[str, Attack] = {
    "small queries": queries(("count-timers", {}), ("get-timer", {"serviceCallId": "call"})),
    "every query": queries(
        ("list-timers", {}),
        ("list-signals", {}),
        ("list-firings", {"signalId": "signal"}),
        ("list-tasks", {"workItemId": "item"}),
        ("list-runs", {}),
        ("list-buried-events", {}),
        ("get-usage", {}),
        ("get-run", {"runId": "run"}),
        ("get-signal", {"signalId": "signal"}),
    ),
    "wide pages": queries(
        ("list-timers", {"limit": 1000}), prepare=_SMALL_TIMERS, opening=b"SUB _INBOX.tenant-a.* 1\r\n"
    ),
    "wide pages of much data": queries(
        ("list-timers", {"limit": 1000}), prepare=_LARGE_TIMERS, opening=b"SUB _INBOX.tenant-a.* 1\r\n"
    ),
    "replies that are not read": queries(
        ("list-timers", {"limit": 1000}), prepare=_LARGE_TIMERS, opening=b"SUB _INBOX.tenant-a.* 1\r\n", reads=False
    ),
    "pages of large runs": queries(
        ("get-run", {"runId": "star", "limit": 1000}), ("get-run", {"runId": "layers", "limit": 1000}), prepare=_RUNS
    ),
    "pages of jobs with 9,990 needs": queries(
        ("get-run", {"runId": "wide", "cursor": _FIRST_WIDE}),
        ("get-run", {"runId": "wide", "cursor": _FIRST_WIDE, "limit": 1}),
        prepare=_RUNS,
    ),
    "counts of many timers": queries(("count-timers", {}), ("get-usage", {}), prepare=_SMALL_TIMERS),
    "invalid queries": flood(*(RawMessage(_LIST, each, reply=_INBOX) for each in (b"{", b"[]", b"\xff", b'{"x":1}'))),
    "cursors": queries(*(("list-timers", {"cursor": "A" * length}) for length in (1, 7, 500, 5_000))),
    "queries of 60 KB": flood(RawMessage(_LIST, b"{}".ljust(60_000), reply=_INBOX), size=20),
    "queries of max_payload": flood(RawMessage(_LIST, b'{"x":[' + b"0," * 500_000 + b"0]}", reply=_INBOX), size=4),
    "queries of max_payload over 18 connections": flood(
        RawMessage(_LIST, b"{}".ljust(1_000_000), reply=_INBOX), size=4, connections=18
    ),
    "queries with 100,000 headers": flood(
        RawMessage(_LIST, b"{}", header_block(*(b"a:b" for _ in range(100_000))), _INBOX), size=4
    ),
    "queries with headers not UTF-8": flood(RawMessage(_COUNT, b"{}", header_block(b"X: \xff"), _INBOX)),
    "queries with headers, and without a reply subject": flood(
        RawMessage(_COUNT, b"{}", header_block(b"X: " + b"x" * 500), _INBOX), RawMessage(_COUNT, b"{}")
    ),
    "queries without a reply subject": flood(RawMessage(_LIST, b'{"limit":1000}')),
    "queries with strange reply subjects": flood(*(RawMessage(_COUNT, b"{}", reply=each) for each in _REPLIES)),
    "queries over 18 connections": queries(
        ("list-timers", {"limit": 1000}), prepare=_SMALL_TIMERS, connections=18, size=50
    ),
}
