"""The checks of doctor, on answers as the servers send them."""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nats_peer import scripted_peer
from tests.harness.stores import open_sqlite
from timer_service.adapters.migrations import Migration
from timer_service.adapters.nats.subjects import covers
from timer_service.adapters.postgres.database import MOST_CONNECTIONS, OLDEST_VERSION
from timer_service.cli.doctor import check_all, check_clock, check_page, postgres, print_findings
from timer_service.cli.doctor.database import check_schema, check_sqlite, check_version
from timer_service.cli.doctor.exposure import check_exposure
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.cli.doctor.nats import (
    check_consumer,
    check_nats,
    check_permissions,
    check_rights,
    check_server,
)
from timer_service.cli.doctor.streams import check_missing_stream, check_stream
from timer_service.cli.healthcheck import read_readiness
from timer_service.config import Config
from timer_service.core.values.address import Kind

OK, NOTE, WARN, FAIL = Status.OK, Status.NOTE, Status.WARN, Status.FAIL
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
}
MIGRATIONS = [Migration(1, "0001_one", "ONE"), Migration(2, "0002_two", "TWO")]
APPLIED = {each.number: (each.name, each.checksum) for each in MIGRATIONS}
SERVER: dict[str, Any] = {"version": "15.4", "number": OLDEST_VERSION * 10_000, "database": "timers", "role": "svc"}
SERVER |= {"standby": False, "schema": "public", "may_create": False}
ON = {name: {"setting": "on", "source": "default"} for name in ("fsync", "full_page_writes", "synchronous_commit")}
ON["autovacuum"] = {"setting": "on", "source": "default"}


def stream(
    config: Mapping[str, Any],
    cluster: str | None = None,
    kind: Kind = Kind.COMMAND,
    *,
    managed: bool = True,
    shared: bool = False,
) -> list[Finding]:
    info = {"config": {**HEALTHY, **config}, "cluster": {"name": cluster}, "state": {"messages": 3, "bytes": 900}}
    return list(check_stream(kind, SUBJECT, info, managed=managed, shared=shared))


def separate_stream(**source: Any) -> Finding:
    """Check a stream that takes the commands from the stream of a tenant. `source`: how that works."""
    consumer = {"name": "commands-7", "deliver_subject": "timer.intake.v1.acme.7"}
    sources = {"subjects": [], "duplicate_window": 1, "sources": [{"name": "TIMER_CMD_acme", "consumer": consumer}]}
    state = {"name": "TIMER_CMD_acme", "active": 10**9, **source}
    info = {"config": {**HEALTHY, **sources}, "state": {"messages": 3, "bytes": 900}, "sources": [state]}
    (finding,) = check_stream(Kind.COMMAND, SUBJECT, info, managed=True, shared=True)
    return finding


def test_healthy_stream() -> None:
    """A stream with the settings of the service is ok."""
    (finding,) = stream({})
    assert (finding.status, finding.message) == (OK, "3 messages, 900 bytes, max_age 7 d, max_bytes 100000")
    assert [each.status for each in stream({"max_age": 0})] == [OK]  # messages are never deleted
    assert [each.status for each in stream({"subjects": ["timer.cmd.>"]})] == [OK]
    (letters,) = stream({"duplicate_window": 1}, kind=Kind.DEAD_LETTER, shared=True)
    assert letters.status is OK  # a dead letter that is stored twice costs nothing


@pytest.mark.parametrize("message", UNHEALTHY)
def test_unhealthy_stream(message: str) -> None:
    """Each setting that can cause a problem is named, with a remedy."""
    (finding,) = stream(UNHEALTHY[message])
    assert finding.status is (FAIL if message.startswith("does not take") else WARN)
    assert message in finding.message
    assert finding.remedy


@pytest.mark.parametrize("setting", [{"max_msg_size": 20}, {"no_ack": True}, {"discard": "old"}])
def test_settings_with_which_no_service_starts(setting: Mapping[str, Any]) -> None:
    """A setting that a service changes at its start is a warning. It is a failure if the service refuses to start."""
    assert [[each.status for each in stream(setting, managed=managed)] for managed in (True, False)] == [[WARN], [FAIL]]


def test_streams_in_a_cluster_and_of_several_tenants() -> None:
    """One replica matters in a cluster. The stream of events should take batches, and a shared one have a limit."""
    assert "1 replica" in stream({}, cluster="c1")[0].message
    assert stream({"num_replicas": 3}, cluster="c1")[0].status is OK
    assert "publishing is slower" in stream({}, kind=Kind.EVENT)[0].message
    assert "without persist_mode" in str(stream({"persist_mode": "async"}, kind=Kind.EVENT)[0].remedy)
    full, shared = stream({"max_bytes": -1}, shared=True)
    assert (full.status, "nats stream edit TIMER_CMD --max-bytes" in str(full.remedy)) == (NOTE, True)
    assert (shared.status, "timer-service tenants separate" in str(shared.remedy)) == (NOTE, True)


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ({}, OK, "3 messages, "),
        ({"lag": 7}, NOTE, "has not taken 7 commands of TIMER_CMD_acme yet"),
        (
            {"active": -1, "error": {"description": "stream not found"}},
            WARN,
            "takes no commands from TIMER_CMD_acme: stream not found",
        ),
        ({"active": 11 * 10**9}, WARN, "takes no commands from TIMER_CMD_acme: it does not answer"),
    ],
)
def test_streams_of_the_tenants(source: Mapping[str, Any], status: Status, message: str) -> None:
    """A tenant's stream that gives no sign is a warning with the reason. Commands that wait there are a note."""
    finding = separate_stream(**source)
    assert (finding.status, finding.message[: len(message)]) == (status, message)


def test_missing_stream() -> None:
    """A missing stream is a failure only if the service would not create it."""
    assert [check_missing_stream("stream", managed=each).status for each in (True, False)] == [WARN, FAIL]


def test_exposed_connection() -> None:
    """A connection over the network without TLS, and a server without a login, are warnings."""
    for host in ("127.0.0.1", "::1", "localhost"):
        assert list(check_exposure(host, encrypted=False, authenticated=False)) == []
    assert list(check_exposure("10.0.0.7", encrypted=True, authenticated=True)) == []
    clear, open_to_all = check_exposure("nats.example", encrypted=False, authenticated=False)
    assert (clear.status, "not encrypted" in clear.message) == (WARN, True)
    assert (open_to_all.status, "asks for no login" in open_to_all.message) == (WARN, True)


def test_permissions() -> None:
    """Subjects that are not permitted are named. A denial wins. A login with all rights is a warning."""
    wanted = (["timer.evt.v1.*.>", "$JS.ACK.TIMER_CMD.timer-service.>"], ["timer.qry.v1.*.*"])
    assert [each.status for each in check_permissions(None, *wanted)] == [NOTE]
    assert [each.status for each in check_permissions({"data": {}}, *wanted)] == [OK]
    old = {"publish": {"allow": ["timer.evt.v1.*.*", "$JS.>"]}, "subscribe": {}}
    assert "publish timer.evt.v1.*.>" in next(iter(check_permissions({"data": {"permissions": old}}, *wanted))).message
    rules = {"publish": {"allow": ["timer.evt.>"]}, "subscribe": {"allow": [">"], "deny": ["timer.qry.v1.*.*"]}}
    publish, subscribe = check_permissions({"data": {"permissions": rules}}, *wanted)
    assert (publish.status, publish.message) == (FAIL, "may not publish $JS.ACK.TIMER_CMD.timer-service.>")
    assert (subscribe.status, subscribe.message) == (FAIL, "may not subscribe timer.qry.v1.*.*")
    assert [each.status for each in check_rights({"streams": 3})] == [WARN]
    assert list(check_rights({"error": {"code": 503}})) == list(check_rights(None)) == []


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        *(("a.b", "a.b", True), ("a.*", "a.b", True), ("a.>", "a.b.c", True), ("a.>", "a.*.>", True), (">", "a", True)),
        *(("a.b", "a.*", False), ("a.>", "a", False), ("a.*", "a.b.c", False), ("a.*", "a.>", False)),
        *(("a.*.>", "a.>", False), ("b.>", "a.b", False)),
    ],
)
def test_covers(pattern: str, subject: str, *, expected: bool) -> None:
    """A pattern covers a subject if it matches everything that the subject matches."""
    assert covers(pattern, subject) is expected


@pytest.mark.parametrize(
    ("seconds", "status"), [((1.09, 0), OK), ((1.2, 0), WARN), ((-5, 0), WARN), ((9, 9.5), OK), ((9, 7.8), WARN)]
)
def test_clock_skew(seconds: tuple[float, float], status: Status) -> None:
    """The clocks of broker and database may differ by a second more than the uncertainty, in either direction."""
    finding = check_clock(
        *(Skew(f"clock {each}", timedelta(seconds=each), timedelta(seconds=0.05)) for each in seconds)
    )
    ahead = seconds[0] - seconds[1]
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"clock {seconds[1]} is {abs(ahead):.3f} s {relation} clock {seconds[0]}"
    assert (finding.status, finding.message[: len(text)]) == (status, text)


def test_versions() -> None:
    """An old server is a warning. An old SQLite library is a note: the service is not affected.

    An old PostgreSQL and a standby are failures.
    """
    assert [check_server((2, minor, 9), "host").status for minor in (11, 12)] == [WARN, OK]
    assert [check_version((3, 51, patch)).status for patch in (2, 3)] == [NOTE, OK]
    fine = postgres.check_server(SERVER)
    assert (fine.status, fine.message) == (OK, "PostgreSQL 15.4, database timers, as svc")
    assert postgres.check_server({**SERVER, "number": OLDEST_VERSION * 10_000 - 1}).status is FAIL
    assert postgres.check_server({**SERVER, "standby": True}).status is FAIL


def test_schema() -> None:
    """A pending migration is a failure only if the service would not apply it. A foreign database always is."""

    def status(applied: Mapping[int, tuple[str, str]], known: list[Migration], *, automatic: bool = True) -> Status:
        return check_schema(applied, known, automatic=automatic).status

    first = {1: APPLIED[1]}
    assert status(APPLIED, MIGRATIONS, automatic=False) is OK
    assert [status(first, MIGRATIONS, automatic=each) for each in (True, False)] == [WARN, FAIL]
    assert status(APPLIED, MIGRATIONS[:1]) is FAIL
    assert status({1: ("0001_one", "another")}, MIGRATIONS) is FAIL


CONSUMER = {"stream_name": "TIMER_CMD", "num_pending": 3, "num_waiting": 1}


@pytest.mark.parametrize(
    ("info", "status", "message"),
    [
        (CONSUMER, OK, "a service reads the commands; 3 commands are not read yet"),
        ({**CONSUMER, "num_waiting": 0}, WARN, "no service reads the commands at the moment; 3 commands are not"),
        ({**CONSUMER, "paused": True, "pause_until": "tomorrow"}, FAIL, "is paused until tomorrow; 3 commands are"),
        ({"error": {"code": 404}}, WARN, "does not exist: no service has read commands here yet"),
    ],
)
def test_consumer(info: Mapping[str, Any], status: Status, message: str) -> None:
    """The finding says whether a service reads the commands."""
    finding = check_consumer(info)
    assert (finding.status, finding.message[: len(message)]) == (status, message)


def test_flows() -> None:
    """Each flow that stopped is a failure with its reason. A service that drains is a warning."""
    page = {"commands": "ok", "events": "stream TIMER_EVT is missing", "service": "draining"}
    assert [(each.check, each.status, each.message) for each in check_page(Config(), page)] == [
        ("flow of commands", OK, "ok"),
        ("flow of events", FAIL, "stream TIMER_EVT is missing"),
        ("service", WARN, "draining"),
    ]


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[]", b'{"database": "ok"}', b'{"service": 1}'])
async def test_no_service_at_the_http_port(body: bytes) -> None:
    """If another program answers at the HTTP port of the settings, a note says that no service does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        config = Config(http_port=server.sockets[0].getsockname()[1])
        (finding,) = check_page(config, await asyncio.to_thread(read_readiness, config))
    assert (finding.check, finding.status) == ("service", NOTE)
    assert finding.message.startswith("no service answers at http://127.0.0.1:")


def test_printed_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """No text of a server acts on the terminal. The last line counts the findings; notes only if there are some."""
    hostile, shown = "refused \x1b[2J\u202e", r"refused \x1b[2J\u202e"
    ok, warn, note = (Finding("check", status, "message") for status in (OK, WARN, NOTE))
    print_findings([Finding("broker", FAIL, hostile, hostile), ok])
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
        found = await check_all(Config(broker_url=peer.url, db_path=tmp_path / "timers.db"))
    assert "sent an answer that doctor cannot read (KeyError)" in [each.message for each in found]
    assert "database" in [each.check for each in found]


@pytest.mark.parametrize(
    ("settings", "verb", "denied", "status"),
    [
        ({}, "publish", "timer.wake.>", OK),
        ({"database_url": "postgresql://h/d"}, "publish", "timer.wake.>", FAIL),
        ({}, "subscribe", "_INBOX_TIMER_SERVICE.>", FAIL),
    ],
)
async def test_needed_permissions(settings: Mapping[str, str], verb: str, denied: str, status: Status) -> None:
    """On PostgreSQL, the service must be allowed to publish hints to other instances. It always needs its inbox."""
    rules = {verb: {"deny": [denied]}}
    async with scripted_peer() as peer:
        peer.answer = lambda subject, _body: {"data": {"permissions": rules}} if "USER" in subject else {"error": {}}
        found = await check_nats(Config.model_validate({"broker_url": peer.url, **settings}))
    (permissions,) = (each for each in found if isinstance(each, Finding) and each.check == "permissions")
    assert permissions.status is status


def test_no_database_file(tmp_path: Path) -> None:
    """It is a note: doctor may run in the folder of a client."""
    found = [*check_sqlite(Config(db_path=tmp_path / "timers.db"))]
    (database,) = (each for each in found if isinstance(each, Finding) and each.check == "database")
    text = f"there is no {tmp_path / 'timers.db'} here; this matters only where the service runs"
    assert (database.status, database.message) == (NOTE, text)


@pytest.mark.parametrize(("automatic", "status"), [(True, WARN), (False, FAIL)])
def test_database_file_without_migrations(tmp_path: Path, *, automatic: bool, status: Status) -> None:
    """If the service does not apply migrations, those that a file lacks are a failure."""
    with closing(sqlite3.connect(tmp_path / "timers.db")) as connection:
        connection.execute("CREATE TABLE other (a)")
    found = [*check_sqlite(Config(db_path=tmp_path / "timers.db", auto_migrate=automatic))]
    (schema,) = (each for each in found if isinstance(each, Finding) and each.check == "schema")
    assert schema.status is status


async def test_database_file_that_lacks_a_table(tmp_path: Path) -> None:
    """A file whose schema is at head, but whose schedules cannot be read, is a failure with the reason."""
    path = tmp_path / "timers.db"
    async with open_sqlite(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE schedules")
    found = [each for each in check_sqlite(Config(db_path=path)) if isinstance(each, Finding)]
    assert (found[-1].status, found[-1].message) == (FAIL, f"cannot read {path}: no such table: schedules")


async def test_clock_of_the_broker(tmp_path: Path) -> None:
    """The clock of the broker is that of its answer."""
    behind = {"error": {"code": 503, "description": "no JetStream"}, "ts": "2020-01-01T00:00:00.123456789Z"}
    async with scripted_peer() as peer:
        peer.answer = lambda subject, _body: behind if ".STREAM." in subject else {"error": {}}
        found = await check_all(Config(broker_url=peer.url, db_path=tmp_path / "timers.db"))
    (clock,) = (each for each in found if each.check == "clock")
    assert (clock.status, clock.message[:14], clock.message[-29:]) == (
        WARN,
        "this clock is ",
        "s ahead of the broker's clock",
    )
    stream = next(each for each in found if each.check == "stream TIMER_EVT")
    assert (stream.status, stream.message) == (FAIL, "no JetStream")


def test_rights_on_postgres() -> None:
    """The role must be able to create tables while a migration is pending. The remedy is the statement to run."""
    assert postgres.check_rights(SERVER, {}, pending=False).status is OK
    assert str(postgres.check_rights(SERVER, {}, pending=True).remedy).startswith("GRANT CREATE ON SCHEMA public TO ")
    assert postgres.check_rights({**SERVER, "may_create": True}, {}, pending=True).status is OK
    assert postgres.check_rights({**SERVER, "schema": None}, {}, pending=False).status is FAIL
    finding = postgres.check_rights(SERVER, {"timers": ["UPDATE", "DELETE"]}, pending=False)
    assert (finding.status, finding.remedy) == (FAIL, "GRANT UPDATE, DELETE ON timers TO svc;")


@pytest.mark.parametrize(
    ("name", "source", "remedy"),
    [
        ("fsync", "default", "Set fsync = on in"),
        ("synchronous_commit", "database", "ALTER ROLE svc IN DATABASE timers SET synchronous_commit = on;"),
        ("synchronous_commit", "client", "Remove it from the options in TIMER_DATABASE_URL."),
        ("autovacuum", "default", "Set autovacuum = on in"),
    ],
)
def test_settings_of_postgres(name: str, source: str, remedy: str) -> None:
    """Each setting that can lose commits or keeps dead rows is a warning with a remedy."""
    assert [each.status for each in postgres.check_settings(ON, SERVER)] == [OK, OK]
    found = [*postgres.check_settings({**ON, name: {"setting": "off", "source": source}}, SERVER)]
    (finding,) = (each for each in found if each.status is WARN)
    assert f"{name} = off" in finding.message
    assert str(finding.remedy).startswith(remedy)


@pytest.mark.parametrize(
    ("usable", "taken", "limit"),
    [
        (97, 97 - MOST_CONNECTIONS, None),
        (97, 98 - MOST_CONNECTIONS, "max_connections"),
        (MOST_CONNECTIONS - 1, 0, "the CONNECTION LIMIT of role or database"),
    ],
)
def test_connections_of_postgres(usable: int, taken: int, limit: str | None) -> None:
    """One more instance must get all its connections; else the limit to raise is named."""
    finding = postgres.check_connections({"most": 100, "ours": 97, "taken": taken, "usable": usable})
    assert finding.status is (OK if limit is None else WARN)
    assert finding.remedy is None or finding.remedy.startswith(f"Raise {limit}: ")
