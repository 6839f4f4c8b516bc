"""Attacks on the server: connections, subscriptions, requests and acknowledgements."""

from collections.abc import Mapping

from tests.harness.attacks.attack import LONG_AFTER, LONG_AGO, Attack, address, body, flood, numbered
from tests.harness.raw_nats import RawMessage, header_block

MIB = 1024 * 1024
_INBOX = b"_INBOX.tenant-a.any"
_NEXT = b"$JS.API.CONSUMER.MSG.NEXT.TIMER_EVT_tenant-a.tenant-a"
_OWN = b"$JS.ACK.TIMER_EVT_tenant-a.tenant-a"
_SCHEDULE = address("ScheduleTimer")
_DUE = body("ScheduleTimer", {"serviceCallId": "call-NUMBER", "dueAt": LONG_AGO, "data": "x" * 10_000})
_LATER = body("ScheduleTimer", {"serviceCallId": "call-NUMBER", "dueAt": LONG_AFTER, "data": "x" * 10_000})
_WIDE = (
    b"_INBOX.>",
    b"timer.evt.>",
    b"timer.evt.v1.tenant-a.*",
    b"_INBOX.tenant-a.>",
    b"timer.evt.*.*.*",
    b"_INBOX.*.>",
)


def _subscriptions(count: int, patterns: tuple[bytes, ...]) -> bytes:
    return b"".join(b"SUB %b %d\r\n" % (patterns[n % len(patterns)], n + 1) for n in range(count))


def _requests(*subjects: bytes, content: bytes = b"", reply: bytes = _INBOX, size: int = 200) -> Attack:
    return flood(*(RawMessage(subject, content, reply=reply) for subject in subjects), size=size)


def _churn(*patterns: bytes) -> Attack:
    """Subscribe and unsubscribe. Patterns that are imports change the interest of the service's account too."""
    one = b"".join(b"SUB %b %d\r\nUNSUB %d\r\n" % (each, n + 1, n + 1) for n, each in enumerate(patterns))
    return Attack(lambda _: one * 50, 100 * len(patterns), connections=4)


def _refused_events(count: int, data: int, *, batch: int = 1000, reads: bool = True) -> Attack:
    """Pull own events that are stored already, and refuse all of them, so that each pull gets them again."""
    due = {"serviceCallId": "event-NUMBER", "dueAt": LONG_AGO, "data": "x" * data}
    stored = [numbered(RawMessage(_SCHEDULE, body("ScheduleTimer", due)), number) for number in range(count)]
    pull = RawMessage(_NEXT, b'{"batch": %d, "no_wait": true}' % batch, reply=_INBOX)
    refused = [RawMessage(b"%b.1.%d.1.1.0" % (_OWN, each), b"-NAK") for each in range(1, count + 1)]
    block = b"".join(each.encode() for each in (pull, *refused))
    opening = b"SUB %b 1\r\n" % _INBOX
    return Attack(lambda _: block, count + 1, connections=18, opening=opening, prepare=stored, reads=reads)


BROKER_USE: Mapping[str, Attack] = {
    "requests to JetStream": _requests(
        b"$JS.API.INFO", b"$JS.API.STREAM.INFO.TIMER_CMD", b"$JS.API.CONSUMER.INFO.TIMER_EVT_tenant-a.tenant-a"
    ),
    "requests to the system account": _requests(b"$SYS.REQ.USER.INFO", b"$SYS.REQ.ACCOUNT.PING.CONNZ"),
    "pulls": _requests(_NEXT, content=b'{"batch": 1, "no_wait": true}'),
    "pulls that wait": _requests(_NEXT, content=b'{"batch": 1000, "expires": 60000000000}'),
    "pulls with replies elsewhere": _requests(_NEXT, content=b'{"batch": 1, "no_wait": true}', reply=b"$JS.API.INFO"),
    "acknowledgements of own events": flood(
        RawMessage(_OWN + b".1.1.1.1.0", b"+ACK"),
        RawMessage(_OWN + b".1.99999.99999.1.0", b"+WPI"),
        RawMessage(_OWN + b".x", b"+NXT", reply=_INBOX),
    ),
    "acknowledgements of others": flood(
        RawMessage(b"$JS.ACK.TIMER_CMD.timer-service.1.1.1.1.0", b"+TERM"),
        RawMessage(b"$JS.ACK.TIMER_EVT_tenant-b.tenant-b.1.1.1.1.0", b"+TERM"),
    ),
    "small events that are refused": _refused_events(1000, 100),
    "large events that are refused": _refused_events(700, 60_000),
    "large events that are refused and not read": _refused_events(700, 60_000, reads=False),
    "forbidden subjects": _requests(
        b"timer.cmd.v1.tenant-b.schedule-timer", b"timer.evt.v1.tenant-a.x", b"timer.dlq.v1.tenant-a.x", b"_R_.x"
    ),
    "inboxes of others": _requests(b"_INBOX.tenant-b.guessed", b"_INBOX.any", content=b"x" * 100),
    "unknown commands and queries": _requests(
        b"timer.cmd.v1.tenant-a.\xff", b"timer.qry.v1.tenant-a.\xff", _SCHEDULE + b"x" * 3_500
    ),
    "max_payload to nobody": flood(RawMessage(b"nobody", b"x" * MIB), size=4),
    "traces of messages": flood(
        RawMessage(_SCHEDULE, _LATER, header_block(b"Nats-Trace-Dest: _INBOX.tenant-a.trace")),
        RawMessage(_SCHEDULE, _LATER, header_block(b"Nats-Trace-Dest: timer.cmd.v1.tenant-a.schedule-timer")),
        RawMessage(_SCHEDULE, _LATER, header_block(b"Nats-Trace-Dest: x", b"Nats-Trace-Only: true")),
        size=40,
    ),
    "500 subscriptions": flood(RawMessage(_SCHEDULE, _DUE), size=20, connections=18, opening=_subscriptions(29, _WIDE)),
    "interest churn": _churn(b"timer.evt.v1.tenant-a.*", b"_INBOX.tenant-a.>", b"_INBOX.tenant-a.x", b">"),
    "many interests": Attack(
        lambda number: (
            b"".join(b"SUB _INBOX.tenant-a.%d.%d %d\r\n" % (number, n, n + 1) for n in range(29))
            + b"".join(b"UNSUB %d\r\n" % (n + 1) for n in range(29))
        ),
        58,
        connections=4,
    ),
    "connections opened and closed": Attack(lambda _: b"PING\r\n", 1, connections=16, reconnects=True),
    "connections that subscribe and end": Attack(
        lambda _: _subscriptions(29, _WIDE), 29, connections=8, reconnects=True
    ),
    "broken protocol": Attack(lambda _: b"PUB x 3\r\nabcdefgh\r\nNONSENSE\r\n", 1, connections=8, reconnects=True),
    "more than max_payload": Attack(lambda _: b"PUB x 99999999\r\n", 1, connections=8, reconnects=True),
    "endless control line": Attack(lambda _: b"PUB " + b"x" * 100_000, 1, connections=8, reconnects=True),
    "events that are not read": flood(
        RawMessage(_SCHEDULE, _DUE),
        size=20,
        connections=8,
        opening=b"SUB timer.evt.v1.tenant-a.* 1\r\n",
        reads=False,
    ),
    "outcomes that are not read": flood(
        RawMessage(_SCHEDULE, _LATER, header_block(b"Timer-Reply-To: _INBOX.tenant-a.NUMBER")),
        size=20,
        connections=4,
        opening=b"SUB _INBOX.tenant-a.* 1\r\n",
        reads=False,
    ),
    "acknowledgements that are not read": flood(
        RawMessage(_SCHEDULE, b"{}", reply=_INBOX), opening=b"SUB _INBOX.tenant-a.* 1\r\n", reads=False
    ),
    "requests that answer each other": flood(
        RawMessage(b"loop.a", b"x", reply=b"loop.b"), opening=b"SUB loop.* 1\r\nSUB > 2\r\n"
    ),
}
