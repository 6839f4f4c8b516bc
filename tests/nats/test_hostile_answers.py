"""The command line beside a server that answers nonsense."""

import asyncio
import base64
import json
import sys
from typing import Any

import pytest

from tests.harness.nats_peer import scripted_peer
from timer_service import cli

AT = "2026-01-01T00:00:00Z"
LISTS = ("timers", "signals", "schedules", "runs", "workflows", "workers", "events", "usage", "firings", "tasks")
RUN = {"tenantId": "acme", "runId": "r", "status": "running", "createdAt": AT, "openJobs": 1, "unresolvedGroups": 0}
TIMER = {"tenantId": "acme", "serviceCallId": "c", "state": "Scheduled", "registeredAt": AT, "attempt": 0}
STREAM = {"config": {"name": "a", "num_replicas": 1}, "created": AT}
STATE = {"messages": 1, "bytes": 1, "first_seq": 1, "last_seq": 9, "consumer_count": 0}
HEADERS = base64.b64encode(b"NATS/1.0\r\nTimer-Source-Sequence: x\r\n\r\n").decode()
ERRORS: list[Any] = [1, None, [], {}, {"code": "\ud800"}, {"code": 404, "description": [1]}]
ROWS: list[Any] = [1, [1], [{}], [None], [[]]]

ANSWERS: list[Any] = [
    *(b"", b"{", b"\xff\xfe", b'{"a":"\xff"}', b"[" * 100_000, b"9" * 5000, b"NaN", b"null"),
    *([], {}, 1, "x", {"a": "x" * 900_000}),
    *({"error": each} for each in ERRORS),
    *(dict.fromkeys(LISTS, rows) for rows in ROWS),
    *({**dict.fromkeys(LISTS, ()), "cursor": cursor} for cursor in ("x", 5)),
    *({**TIMER, "dueAt": at} for at in ("2026-01-01T00:00:00", "9999-12-31T23:59:59-14:00", 1e300)),
    *({**RUN, **more} for more in ({"jobs": [], "counts": 5}, {"jobs": [], "cursor": "x"})),
    {**RUN, "jobs": [{"name": "j", "status": "x", "needs": [{"x": "y"}]}]},
    *({"slots": slots, "complete": False} for slots in ([AT], ["9999-12-31T23:59:59.9999Z"])),
    *({"message": {"subject": "timer.dlq.v1.acme.x", "seq": 1, "time": AT, "hdrs": each}} for each in ("x", HEADERS)),
    *({"message": each} for each in (5, {"data": "%", "time": "z"}, {"subject": "x", "seq": 1, "time": AT})),
    *({"streams": each, "total": 9, **STREAM, "state": STATE} for each in (5, [1], ["a"])),
    {"streams": ["a"], "total": 9, "config": {"name": 5, "sources": 5, "subjects": 7}, "created": AT, "state": []},
]


@pytest.mark.parametrize(
    "command",
    [
        *("timers get acme c", "timers list acme --all", "timers count acme", "signals list acme --all"),
        *("signals firings acme s --all", "schedules get acme s", "schedules list acme --all"),
        *("schedules preview acme --every 5m", "runs get acme r", "runs list acme --all", "workflows get acme w"),
        *("workflows workers acme", "workflows count acme", "events list acme --all", "tenants usage acme"),
        *("tenants separate acme", "dead-letters list", "dead-letters show acme 1", "dead-letters resubmit acme 1"),
    ],
)
async def test_one_line_for_nonsense(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command ends with one line of an error, or it can use the answer. It shows no traceback, and blames no user."""
    monkeypatch.setattr(sys, "argv", ["timer-service", *command.split()])
    async with scripted_peer() as peer:
        monkeypatch.setenv("TIMER_BROKER_URL", peer.url)
        for answer in ANSWERS:
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            peer.answer = lambda _subject, _body, body=body: body  # type: ignore[misc]
            with pytest.raises(SystemExit) as ended:
                async with asyncio.timeout(10):
                    await asyncio.to_thread(cli.main)
            printed, code = capsys.readouterr(), ended.value.code
            assert code in (None, 0, 1) or str(code).startswith("timer-service: "), (answer, printed.err)
            assert "\n" not in str(code), answer
            assert "Traceback" not in printed.err, answer
