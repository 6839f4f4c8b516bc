"""The checks of doctor."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nats_peer import scripted_peer
from timer_service.adapters.migrations import Migration
from timer_service.adapters.nats.subjects import covers
from timer_service.cli.doctor import check_all, check_clock, check_page, print_findings
from timer_service.cli.doctor.broker import (
    check_consumer,
    check_exposure,
    check_permissions,
    check_rights,
    check_server,
)
from timer_service.cli.doctor.database import check_schema, check_version
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.cli.doctor.streams import check_missing_stream, check_stream
from timer_service.cli.healthcheck import read_readiness
from timer_service.config import Config
from timer_service.core.values.message import Kind

SETTING = "TIMER_DB_PATH"
SUBJECT = "timer.cmd.v1.*.*"
DAY = 86_400 * 10**9
HEALTHY: Mapping[str, Any] = {
    "name": "TIMER_CMD",
    "subjects": [SUBJECT],
    "discard": "new",
    "allow_atomic": False,
    "max_age": 7 * DAY,
    "max_bytes": 100_000,
    "max_msgs": -1,
    "duplicate_window": 120 * 10**9,
    "num_replicas": 1,
}
UNHEALTHY: Mapping[str, Mapping[str, Any]] = {
    "does not take timer.cmd": {"subjects": ["timer.cmd.v1.acme.*"]},
    "drops its oldest messages": {"discard": "old"},
    "deletes messages after 1:00:00": {"max_age": DAY // 24},
    "is nearly full: it has 900 of max_bytes = 1100": {"max_bytes": 1100},
    "max_msgs = 7": {"max_msgs": 7},
    "for 0:00:30 only": {"duplicate_window": 30 * 10**9},
    "loses its messages when the server ends": {"storage": "memory"},
    "no_ack = true": {"no_ack": True},
    "max_msg_size = 1000: it needs -1": {"max_msg_size": 1000},
    "max_msgs_per_subject = 1": {"max_msgs_per_subject": 1},
    "subject_transform = {": {"subject_transform": {"src": ">", "dest": "x.>"}},
    "allow_rollup_hdrs = true": {"allow_rollup_hdrs": True},
    "discard_new_per_subject = true": {"discard_new_per_subject": True},
}
MIGRATIONS = [Migration(1, "0001_one", "ONE"), Migration(2, "0002_two", "TWO")]
APPLIED = {each.number: (each.name, each.checksum) for each in MIGRATIONS}


def stream(
    config: Mapping[str, Any], cluster: str | None = None, kind: Kind = Kind.COMMAND, *, shared: bool = False
) -> list[Finding]:
    info = {"config": {**HEALTHY, **config}, "cluster": {"name": cluster}, "state": {"messages": 3, "bytes": 900}}
    return list(check_stream(kind, SUBJECT, info, shared=shared))


def separate_stream(**source: Any) -> list[Finding]:
    """Check a stream that takes the commands from the stream of a tenant. `source`: how that works."""
    consumer = {"name": "commands-7", "deliver_subject": "timer.intake.v1.acme.7"}
    sources = {"subjects": [], "duplicate_window": 1, "sources": [{"name": "TIMER_CMD_acme", "consumer": consumer}]}
    state = {"name": "TIMER_CMD_acme", "active": 10**9, **source}
    info = {"config": {**HEALTHY, **sources}, "state": {"messages": 3, "bytes": 900}, "sources": [state]}
    return list(check_stream(Kind.COMMAND, SUBJECT, info, shared=True))


def test_healthy_stream() -> None:
    """A stream with the settings of the service is ok."""
    (finding,) = stream({})
    assert (finding.status, finding.message) == (
        Status.OK,
        "3 messages, 900 bytes, max_age 7 d, max_bytes 100000",
    )
    assert "no max_age" in stream({"max_age": 0})[0].message


@pytest.mark.parametrize("message", UNHEALTHY)
def test_unhealthy_stream(message: str) -> None:
    """Each setting that can cause a problem is named, with a remedy."""
    (finding,) = stream(UNHEALTHY[message])
    assert finding.status is (Status.FAIL if message.startswith("does not take timer.cmd") else Status.WARN)
    assert message in finding.message
    assert finding.remedy


def test_replicas_matter_in_a_cluster_only() -> None:
    """One replica is a problem in a cluster only."""
    (finding,) = stream({}, cluster="c1")
    assert "1 replica" in finding.message
    assert stream({"num_replicas": 3}, cluster="c1")[0].status is Status.OK


def test_atomic_batches() -> None:
    """The stream of events should take atomic batches, and that of commands should not."""
    (slower,) = stream({}, kind=Kind.EVENT)
    assert (slower.status, "publishing is slower" in slower.message) == (Status.WARN, True)
    assert stream({"allow_atomic": True}, kind=Kind.EVENT)[0].status is Status.OK
    _, open_to_all = stream({"allow_atomic": True}, shared=True)
    assert (open_to_all.status, "block the batches" in open_to_all.message) == (Status.NOTE, True)


def test_stream_without_limit() -> None:
    """A stream without `max_bytes` is named, with the command that sets it."""
    finding, _ = stream({"max_bytes": -1}, shared=True)
    assert (finding.status, "has no max_bytes" in finding.message) == (Status.NOTE, True)
    assert "nats stream edit TIMER_CMD --max-bytes" in str(finding.remedy)


def test_stream_that_tenants_share() -> None:
    """If tenants may share the stream of commands, the command that separates them is named."""
    (finding,) = stream({}, shared=True)
    assert (finding.status, "is shared by all tenants" in finding.message) == (Status.NOTE, True)
    assert "timer-service tenants separate" in str(finding.remedy)
    assert stream({}, kind=Kind.DEAD_LETTER, shared=True)[0].status is Status.OK


def test_streams_of_the_tenants() -> None:
    """A tenant's stream that gives no sign is a warning with the reason. Commands that wait there are a note."""
    assert separate_stream()[0].status is Status.OK
    (waiting,) = separate_stream(lag=7)
    assert (waiting.status, "has not taken 7 commands of TIMER_CMD_acme yet" in waiting.message) == (Status.NOTE, True)
    (lost,) = separate_stream(active=-1, error={"description": "stream not found"})
    assert (lost.status, lost.message) == (Status.WARN, "takes no commands from TIMER_CMD_acme: stream not found")
    (quiet,) = separate_stream(active=11 * 10**9)
    assert (quiet.status, "it does not answer" in quiet.message) == (Status.WARN, True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_connection_within_one_machine(host: str) -> None:
    """A connection within one machine needs neither TLS nor a login."""
    assert list(check_exposure(host, encrypted=False, authenticated=False)) == []


def test_exposed_connection() -> None:
    """A connection over the network without TLS, and a server without a login, are warnings."""
    assert list(check_exposure("10.0.0.7", encrypted=True, authenticated=True)) == []
    clear, open_to_all = check_exposure("nats.example", encrypted=False, authenticated=False)
    assert (clear.status, "not encrypted" in clear.message) == (Status.WARN, True)
    assert (open_to_all.status, "asks for no login" in open_to_all.message) == (Status.WARN, True)


def test_login_with_all_rights() -> None:
    """A login that sees the JetStream account may delete its streams, which is a warning."""
    (finding,) = check_rights({"streams": 3})
    assert (finding.status, "delete all streams" in finding.message) == (Status.WARN, True)
    assert list(check_rights({"error": {"code": 503}})) == list(check_rights(None)) == []


def test_stream_of_dead_letters() -> None:
    """The stream of dead letters needs neither atomic batches nor a duplicate window."""
    (finding,) = stream({"allow_atomic": False, "duplicate_window": 1}, kind=Kind.DEAD_LETTER)
    assert finding.status is Status.OK


def test_missing_stream() -> None:
    """A missing stream is a failure only if the service would not create it."""
    assert check_missing_stream("stream TIMER_CMD", managed=True).status is Status.WARN
    assert check_missing_stream("stream TIMER_CMD", managed=False).status is Status.FAIL


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(0.2, Status.OK), (-0.9, Status.OK), (1.05, Status.OK), (1.2, Status.WARN), (-5, Status.WARN)],
)
def test_clock_skew(seconds: float, status: Status) -> None:
    """A skew is a warning if it is more than a second longer than the uncertainty, in either direction."""
    (finding,) = check_clock([Skew(timedelta(seconds=seconds), timedelta(seconds=0.1))], on_sqlite=True)
    assert finding.status is status
    assert ("this clock is" in finding.message, "dueIn" in (finding.remedy or "")) == (True, status is Status.WARN)
    assert ("ahead of" if seconds > 0 else "behind") in finding.message


@pytest.mark.parametrize(
    ("broker", "database", "status"), [(9, 9.5, Status.OK), (9, 7.8, Status.WARN), (-2, 2, Status.WARN)]
)
def test_clocks_of_broker_and_database(broker: float, database: float, status: Status) -> None:
    """The clocks of the broker and of the database are compared with each other, whatever the clock of this machine."""
    skews = [Skew(timedelta(seconds=seconds), timedelta(seconds=0.05)) for seconds in (broker, database)]
    (finding,) = check_clock(skews, on_sqlite=False)
    assert (finding.status, f"{abs(broker - database):.3f} s" in finding.message) == (status, True)
    assert ("ahead of" if broker > database else "behind") in finding.message
    assert [*check_clock(skews[:1], on_sqlite=False), *check_clock([], on_sqlite=True)] == []


def test_versions() -> None:
    """An old server and an old SQLite library are warnings."""
    assert check_server((2, 11, 9), "host:4222").status is Status.WARN
    assert check_server((2, 12, 0), "host:4222").status is Status.OK
    assert check_version((3, 51, 2)).status is Status.WARN
    assert check_version((3, 51, 3)).status is Status.OK


def test_schema() -> None:
    """A pending migration is a failure only if the service would not apply it. A foreign database always is."""
    first = {1: APPLIED[1]}
    assert check_schema(APPLIED, MIGRATIONS, automatic=False, setting=SETTING).status is Status.OK
    assert check_schema(first, MIGRATIONS, automatic=True, setting=SETTING).status is Status.WARN
    pending = check_schema(first, MIGRATIONS, automatic=False, setting=SETTING)
    assert (pending.status, pending.message) == (Status.FAIL, "lacks 0002_two")
    assert check_schema(APPLIED, MIGRATIONS[:1], automatic=True, setting=SETTING).status is Status.FAIL
    assert check_schema({1: ("0001_one", "another")}, MIGRATIONS, automatic=True, setting=SETTING).status is Status.FAIL


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a.*.>", True),
        (">", "a", True),
        ("a.*", "a.*", True),
        ("a.b", "a.*", False),
        ("a.>", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*", "a.>", False),
        ("a.*.>", "a.>", False),
        ("b.>", "a.b", False),
    ],
)
def test_covers(pattern: str, subject: str, *, expected: bool) -> None:
    """A pattern covers a subject if it matches everything that the subject matches."""
    assert covers(pattern, subject) is expected


def test_permissions() -> None:
    """Subjects that are not permitted are named. Without rules everything is permitted, and a denial wins."""
    wanted = (["timer.evt.v1.*.*", "$JS.ACK.TIMER_CMD.timer-service.>"], ["timer.qry.v1.*.*"])
    assert [each.status for each in check_permissions(None, *wanted)] == [Status.NOTE]
    assert [each.status for each in check_permissions({"data": {}}, *wanted)] == [Status.OK]
    rules = {"publish": {"allow": ["timer.evt.>"]}, "subscribe": {"allow": [">"], "deny": ["timer.qry.v1.*.*"]}}
    publish, subscribe = check_permissions({"data": {"permissions": rules}}, *wanted)
    assert (publish.status, publish.message) == (Status.FAIL, "may not publish $JS.ACK.TIMER_CMD.timer-service.>")
    assert (subscribe.status, subscribe.message) == (Status.FAIL, "may not subscribe timer.qry.v1.*.*")


CONSUMER = {"stream_name": "TIMER_CMD", "num_pending": 3, "num_waiting": 1}


@pytest.mark.parametrize(
    ("info", "status", "message"),
    [
        (CONSUMER, Status.OK, "a service reads the commands; 3 commands are not read yet"),
        ({**CONSUMER, "num_waiting": 0}, Status.WARN, "no service reads the commands; 3 commands are not read yet"),
        (
            {**CONSUMER, "paused": True, "pause_until": "tomorrow"},
            Status.FAIL,
            "is paused until tomorrow; 3 commands are not read yet",
        ),
        ({"error": {"code": 404}}, Status.WARN, "does not exist: no service has run here yet"),
    ],
)
def test_consumer(info: Mapping[str, Any], status: Status, message: str) -> None:
    """The finding says whether a service reads the commands."""
    finding = check_consumer(info, runs=False)
    assert (finding.status, finding.message) == (status, message)


@pytest.mark.parametrize("info", [{**CONSUMER, "num_waiting": 0}, {"error": {"code": 404}}])
def test_consumer_of_a_service_that_runs(info: Mapping[str, Any]) -> None:
    """If the service answers on its page but reads no commands, nobody is told to start it."""
    stopped, running = (check_consumer(info, runs=runs) for runs in (False, True))
    assert (stopped.status, running.status) == (Status.WARN, Status.WARN)
    assert "run `timer-service serve`" in (stopped.remedy or "")
    assert running.remedy == 'The "flow of commands" above names the reason. If it is ok, run doctor again.'


def test_flows() -> None:
    """Each flow that stopped is a failure with its reason. A service that drains is a warning."""
    page = {"commands": "ok", "events": "stream TIMER_EVT is missing", "service": "draining"}
    commands, events, service = check_page(Config(), page)
    assert (commands.check, commands.status) == ("flow of commands", Status.OK)
    assert (events.check, events.status) == ("flow of events", Status.FAIL)
    assert events.message == "stream TIMER_EVT is missing"
    assert (service.check, service.status, service.message) == ("service", Status.WARN, "draining")
    assert events.remedy
    assert service.remedy


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[]", b'{"database": "ok"}', b'{"service": 1}', None])
async def test_no_service_at_the_http_port(body: bytes | None) -> None:
    """If nothing answers at the HTTP port of the settings, or another program does, a note says so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body or b""), body or b""))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if body is None:
        server.close()
    config = Config(http_port=port)
    (finding,) = check_page(config, await asyncio.to_thread(read_readiness, config))
    server.close()
    assert (finding.check, finding.status) == ("service", Status.NOTE)
    assert finding.message == f"no service answers at http://127.0.0.1:{port}/readyz"


def test_printed_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """No text of a server acts on the terminal. The last line counts the findings; notes only if there are some."""
    hostile, shown = "refused \x1b[2J\u202e", r"refused \x1b[2J\u202e"
    ok, warn, note = (Finding("check", status, "message") for status in (Status.OK, Status.WARN, Status.NOTE))
    print_findings([Finding("broker", Status.FAIL, hostile, hostile), ok])
    assert capsys.readouterr().out.splitlines() == [
        f"fail  broker: {shown}",
        f"      {shown}",
        "ok    check: message",
        "",
        "1 ok, 0 warnings, 1 failure",
    ]
    print_findings([ok, ok, warn, note])
    assert capsys.readouterr().out.splitlines()[-1] == "2 ok, 1 warning, 0 failures, 1 note"


async def test_no_nonsense_is_read(tmp_path: Path) -> None:
    """An answer of another form is a finding, not a traceback. The other checks still run."""
    async with scripted_peer() as peer:
        peer.answer = lambda _subject, _body: {"num_waiting": 1}
        found = await check_all(Config(broker_url=peer.url, db_path=tmp_path / "timers.db"), None)
    assert "sent an answer that doctor cannot read (KeyError)" in [each.message for each in found]
    assert "database" in [each.check for each in found]
