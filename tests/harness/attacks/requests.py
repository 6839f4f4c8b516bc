"""Attacks with requests of workers."""

import json
from collections.abc import Mapping
from typing import Any

from tests.harness.attacks.attack import TENANT, Attack, flood
from tests.harness.raw_nats import RawMessage

_INBOX = b"_INBOX.tenant-a.NUMBER"
_REPLIES = (
    b"_INBOX.tenant-b.guessed",
    b"timer.evt.v1.tenant-b.x",
    b"$JS.API.STREAM.DELETE.TIMER_CMD",
    b"_INBOX.\xff",
    b">",
)


def _request(name: str, content: Mapping[str, Any] | bytes, reply: bytes = _INBOX) -> RawMessage:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return RawMessage(f"timer.wrk.v1.{TENANT}.{name}".encode(), body, reply=reply)


def _poll(**fields: Any) -> RawMessage:
    return _request("poll-tasks", {"workerId": "w-NUMBER", "types": ["order"], "slots": 1000, **fields})


_UNKNOWN = [{"workflowId": f"order-{number}", "token": "0" * 16, "number": 1} for number in range(1000)]
_REPORTS = {"workerId": "w", "reports": [{**each, "then": {"action": "complete"}} for each in _UNKNOWN]}
_STEPS = [{"key": f"step:{number + 1}", "attempt": 1, "result": 1} for number in range(9000)]
_LONG_REPORT = {"workerId": "w", "reports": [{**_UNKNOWN[0], "steps": _STEPS, "then": {"action": "park"}}]}

REQUESTS: Mapping[str, Attack] = {
    "polls": flood(_poll()),
    "polls that do not wait": flood(_poll(waitMs=0)),
    "polls of 100 lanes": flood(_poll(types=[f"NUMBER-{number}" for number in range(100)]), size=50),
    "reports of unknown workflows": flood(_request("report-tasks", _REPORTS), size=10),
    "long reports": flood(_request("report-tasks", _LONG_REPORT), size=5),
    "renewals of unknown workflows": flood(_request("renew-tasks", {"workerId": "w", "tasks": _UNKNOWN}), size=10),
    "invalid requests": flood(*(_request("report-tasks", each) for each in (b"{", b"[]", b"\xff", b'{"x":1}'))),
    "requests of max_payload": flood(_request("report-tasks", b'{"x":[' + b"0," * 500_000 + b"0]}"), size=4),
    "requests with strange reply subjects": flood(*(_request("poll-tasks", b"{}", each) for each in (*_REPLIES, b""))),
}
