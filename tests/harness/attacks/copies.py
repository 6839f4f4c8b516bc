"""Attacks with many subscriptions: the server copies each message to all of them, or traces them all."""

from collections.abc import Mapping

from tests.harness.attacks.attack import LONG_AFTER, LONG_AGO, TENANT, Attack, address, body, flood
from tests.harness.raw_nats import RawMessage, header_block

_CONNECTIONS = 18
_SUBSCRIPTIONS = 29
_INBOX = b"_INBOX.tenant-a.copied"
_EVENTS = b"timer.evt.v1.tenant-a.*"
_LARGE = "x" * 60_000
_SCHEDULE = address("ScheduleTimer")
_LATER = body("ScheduleTimer", {"serviceCallId": "call-NUMBER", "dueAt": LONG_AFTER, "data": _LARGE})
_DUE = body("ScheduleTimer", {"serviceCallId": "call-NUMBER", "dueAt": LONG_AGO, "data": _LARGE})
_STORED = [
    RawMessage(_SCHEDULE, body("ScheduleTimer", {"serviceCallId": f"call-{n}", "dueAt": LONG_AFTER, "data": _LARGE}))
    for n in range(16)
]
_LIST = f"timer.qry.v1.{TENANT}.list-timers".encode()
_USAGE = f"timer.qry.v1.{TENANT}.get-usage".encode()
_POLL = f"timer.wrk.v1.{TENANT}.poll-tasks".encode()
_HIDDEN_TRACE = header_block(b"X: Nats-Trace-DestNats-Trace-Dest", b"Nats-Trace-Dest: " + _POLL)
"""Because of the first header, the server does not find the second one when it replaces its value."""


def _trace(to: bytes) -> bytes:
    """Return headers that let the server trace a message instead of delivering it, and send the trace to a subject."""
    return header_block(b"Nats-Trace-Dest: " + to, b"Nats-Trace-Only: true")


def _copied(subject: bytes, *messages: RawMessage, size: int, connections: int = _CONNECTIONS) -> Attack:
    """Return the attack that subscribes to a subject as often as it can, and sends messages that lead to copies."""
    opening = b"".join(b"SUB %b %d\r\n" % (subject, sid) for sid in range(1, _SUBSCRIPTIONS + 1))
    return flood(*messages, size=size, connections=connections, opening=opening)


COPIES: Mapping[str, Attack] = {
    "traces of many subscriptions": _copied(b"x.y", RawMessage(b"x.y", headers=_trace(b"t.t")), size=50),
    "traces of many inboxes": _copied(_INBOX, RawMessage(_INBOX, headers=_trace(_INBOX)), size=50),
    "traces of commands and many subscriptions": _copied(b">", RawMessage(_SCHEDULE, headers=_trace(b"t.t")), size=50),
    "traces to nobody": flood(RawMessage(_USAGE, headers=_trace(b"TIMERS.x"))),
    "messages to many own inboxes": _copied(_INBOX, RawMessage(_INBOX, b"x" * 60_000), size=2),
    "large replies to many subscriptions": _copied(_INBOX, RawMessage(_LIST, b"{}", reply=_INBOX), size=1)._replace(
        prepare=_STORED
    ),
    "small replies to many subscriptions": _copied(_INBOX, RawMessage(_USAGE, b"{}", reply=_INBOX), size=20),
    "large outcomes to many subscriptions": _copied(
        _INBOX, RawMessage(_SCHEDULE, _LATER, header_block(b"Timer-Reply-To: " + _INBOX)), size=2
    ),
    "large events to many subscriptions": _copied(_EVENTS, RawMessage(_SCHEDULE, _DUE), size=2),
    "logins again and again": Attack(lambda _: b"", 1, connections=16, logins=20),
}

TRACES: Mapping[str, Attack] = {
    "traces to acknowledgements": flood(RawMessage(_USAGE, headers=_trace(b"$JS.ACK.TIMER_EVT_tenant-a.tenant-a.x"))),
    "traces to queries": flood(RawMessage(_USAGE, headers=_trace(_USAGE))),
    "traces to requests of workers": flood(RawMessage(_USAGE, headers=_trace(_POLL))),
    "traces to commands": flood(RawMessage(_USAGE, headers=_trace(_SCHEDULE))),
    "traces that a header hides": flood(RawMessage(_USAGE, headers=_HIDDEN_TRACE)),
}
"""Attacks with traces to subjects that the tenant may publish to. No setting of the server prevents them."""
