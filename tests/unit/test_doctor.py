"""What doctor makes of what it sees."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from timer_service.adapters.migrations import Migration
from timer_service.cli.doctor.checks.clocks import check_broker_clock, check_database_clock
from timer_service.cli.doctor.checks.permissions import check_permissions, covers
from timer_service.cli.doctor.checks.schema import check_schema
from timer_service.cli.doctor.checks.streams import check_missing_stream, check_stream
from timer_service.cli.doctor.checks.versions import check_server, check_sqlite
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.core.message import Kind

SETTING = "TIMER_DB_PATH"
SUBJECT = "timer.cmd.v1.*.*"
DAY = 86_400 * 10**9
HEALTHY: Mapping[str, Any] = {
    "name": "TIMER_CMD",
    "subjects": [SUBJECT],
    "discard": "new",
    "allow_atomic": True,
    "max_age": 7 * DAY,
    "max_bytes": -1,
    "max_msgs": -1,
    "duplicate_window": 120 * 10**9,
    "num_replicas": 1,
}
UNHEALTHY: Mapping[str, Mapping[str, Any]] = {
    "does not take timer.cmd": {"subjects": ["timer.cmd.v1.acme.*"]},
    "drops its oldest messages": {"discard": "old"},
    "takes no atomic batches": {"allow_atomic": False},
    "forgets messages after 1:00:00": {"max_age": DAY // 24},
    "max_bytes = 1000": {"max_bytes": 1000},
    "max_msgs = 7": {"max_msgs": 7},
    "for 0:00:30 only": {"duplicate_window": 30 * 10**9},
}
MIGRATIONS = [Migration(1, "0001_one", "ONE"), Migration(2, "0002_two", "TWO")]
APPLIED = {each.number: (each.name, each.checksum) for each in MIGRATIONS}


def stream(config: Mapping[str, Any], cluster: str | None = None, kind: Kind = Kind.COMMAND) -> list[Finding]:
    info = {"config": {**HEALTHY, **config}, "cluster": {"name": cluster}, "state": {"messages": 3, "bytes": 900}}
    return list(check_stream(kind, SUBJECT, info))


def test_healthy_stream() -> None:
    """A stream as the service makes it is fine."""
    (finding,) = stream({})
    assert (finding.status, finding.message) == (Status.OK, "3 messages, 900 bytes, max_age 7 d")
    assert stream({"max_age": 0})[0].message.endswith("no max_age")


@pytest.mark.parametrize("message", UNHEALTHY)
def test_unhealthy_stream(message: str) -> None:
    """Each limit that costs something is named, with its remedy."""
    (finding,) = stream(UNHEALTHY[message])
    assert finding.status is (Status.FAIL if message.startswith("does not take") else Status.WARN)
    assert message in finding.message
    assert finding.remedy


def test_replicas_matter_in_a_cluster_only() -> None:
    """One replica is all there can be on a lone server."""
    (finding,) = stream({}, cluster="c1")
    assert "1 replica" in finding.message
    assert stream({"num_replicas": 3}, cluster="c1")[0].status is Status.OK


def test_dead_letters_need_less() -> None:
    """Neither batches nor the duplicate window matter to dead letters."""
    (finding,) = stream({"allow_atomic": False, "duplicate_window": 1}, kind=Kind.DEAD_LETTER)
    assert finding.status is Status.OK


def test_missing_stream() -> None:
    """A missing stream fails only where the service would not make it."""
    assert check_missing_stream("TIMER_CMD", managed=True).status is Status.WARN
    assert check_missing_stream("TIMER_CMD", managed=False).status is Status.FAIL


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(0.2, Status.OK), (-0.9, Status.OK), (1.05, Status.OK), (1.2, Status.WARN), (-5, Status.WARN)],
)
def test_clock_skew(seconds: float, status: Status) -> None:
    """More than a second beyond what the round trip explains is too much, in either direction."""
    finding = check_broker_clock(timedelta(seconds=seconds), timedelta(seconds=0.1), decides=True)
    assert finding.status is status
    assert ("ahead of" if seconds > 0 else "behind") in finding.message


@pytest.mark.parametrize(("seconds", "status"), [(0.9, Status.OK), (5, Status.NOTE), (-5, Status.NOTE)])
def test_clock_that_does_not_decide(seconds: float, status: Status) -> None:
    """Where the database's clock decides, another one that is wrong is worth telling and no more."""
    skew = timedelta(seconds=seconds)
    for finding in (
        check_broker_clock(skew, timedelta(), decides=False),
        check_database_clock(skew, timedelta()),
    ):
        assert finding.status is status
        assert ("ahead of" if seconds > 0 else "behind") in finding.message


def test_versions() -> None:
    """Old servers and SQLite libraries are warned about."""
    assert check_server((2, 11, 9), "host:4222").status is Status.WARN
    assert check_server((2, 12, 0), "host:4222").status is Status.OK
    assert check_sqlite((3, 51, 2)).status is Status.WARN
    assert check_sqlite((3, 51, 3)).status is Status.OK


def test_schema() -> None:
    """Pending migrations fail only where the service would not apply them; a foreign database always does."""
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
    """A permission covers a subject when it covers all that the subject can stand for."""
    assert covers(pattern, subject) is expected


def test_permissions() -> None:
    """What is not permitted is named; no rules permit everything, and a denial wins."""
    wanted = (["timer.evt.v1.*.*", "$JS.ACK.TIMER_CMD.timer-service.>"], ["timer.qry.v1.*.*"])
    assert [each.status for each in check_permissions({}, *wanted)] == [Status.OK]
    rules = {"publish": {"allow": ["timer.evt.>"]}, "subscribe": {"allow": [">"], "deny": ["timer.qry.v1.*.*"]}}
    publish, subscribe = check_permissions(rules, *wanted)
    assert (publish.status, publish.message) == (Status.FAIL, "may not publish $JS.ACK.TIMER_CMD.timer-service.>")
    assert (subscribe.status, subscribe.message) == (Status.FAIL, "may not subscribe timer.qry.v1.*.*")
