"""The checks of doctor on PostgreSQL."""

from dataclasses import replace

import pytest

from timer_service.cli.doctor.finding import Status
from timer_service.cli.doctor.postgres_checks import (
    Connections,
    Rights,
    Server,
    Setting,
    check_autovacuum,
    check_connections,
    check_database,
    check_durability,
    check_rights,
)

SERVER = Server("15.4", 150004, "timers", "svc", standby=False)
ON = {
    name: Setting("on", "default")
    for name in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "track_counts")
}
PLENTY = Connections(most=100, reserved=3, taken=10, role_limit=-1, database_limit=-1)
ENOUGH = Rights("public", may_create=False, lacking={})


def test_database() -> None:
    """An old server and a standby are failures. The finding names the server."""
    fine = check_database(SERVER, 13)
    assert (fine.status, fine.message) == (Status.OK, "PostgreSQL 15.4, database timers, as svc")
    assert check_database(replace(SERVER, number=130000), 13).status is Status.OK
    assert check_database(replace(SERVER, number=120017), 13).status is Status.FAIL
    assert check_database(replace(SERVER, standby=True), 13).status is Status.FAIL


def test_rights() -> None:
    """The role must be able to create tables while a migration is pending. The remedy is the statement to run."""
    assert check_rights(ENOUGH, "svc", pending=False).status is Status.OK
    assert check_rights(ENOUGH, "svc", pending=True).remedy == (
        "GRANT CREATE ON SCHEMA public TO svc; or run `timer-service migrate up` as another role."
    )
    assert check_rights(replace(ENOUGH, may_create=True), "svc", pending=True).status is Status.OK
    assert check_rights(replace(ENOUGH, schema=None), "svc", pending=False).status is Status.FAIL
    finding = check_rights(replace(ENOUGH, lacking={"timers": ["UPDATE", "DELETE"]}), "svc", pending=False)
    assert (finding.status, finding.message) == (Status.FAIL, "lacks UPDATE, DELETE on timers")
    assert finding.remedy == "GRANT UPDATE, DELETE ON timers TO svc;"


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_durability(name: str) -> None:
    """Each setting that can lose commits is a warning, with the place where it was set and a remedy."""
    (fine,) = check_durability(ON, SERVER)
    assert (fine.status, fine.message) == (
        Status.OK,
        "fsync = on, full_page_writes = on, synchronous_commit = on",
    )
    (finding,) = check_durability({**ON, name: Setting("off", "database")}, SERVER)
    assert finding.status is Status.WARN
    assert finding.message.startswith(f"{name} = off (set by: database): ")
    assert f"{name} = on" in (finding.remedy or "")


def test_durability_disabled_in_the_url() -> None:
    """ALTER ROLE cannot change what the URL sets. Commits that wait for standbys are ok."""
    (finding,) = check_durability({**ON, "synchronous_commit": Setting("off", "client")}, SERVER)
    assert "TIMER_DATABASE_URL" in (finding.remedy or "")
    (fine,) = check_durability({**ON, "synchronous_commit": Setting("remote_apply", "database")}, SERVER)
    assert fine.status is Status.OK


@pytest.mark.parametrize(
    ("connections", "status", "message"),
    [
        (PLENTY, Status.OK, "97 for this role, 6 instances with 14 each; 10 are taken"),
        (replace(PLENTY, taken=83), Status.OK, "83 are taken"),
        (replace(PLENTY, taken=84), Status.WARN, "84 are taken"),
        (replace(PLENTY, most=16), Status.WARN, "13 for this role, 0 instances"),
        (replace(PLENTY, role_limit=28), Status.OK, "28 for this role, 2 instances"),
        (replace(PLENTY, database_limit=13), Status.WARN, "13 for this role, 0 instances"),
        (replace(PLENTY, role_limit=0), Status.WARN, "0 for this role"),
    ],
)
def test_connections(connections: Connections, status: Status, message: str) -> None:
    """One more instance must be able to open all its connections, whichever limit applies."""
    finding = check_connections(connections, 14)
    assert finding.status is status
    assert message in finding.message
    assert (finding.remedy is None) is (status is Status.OK)


def test_autovacuum() -> None:
    """Autovacuum must be on, on the server and for each table."""
    assert [each.status for each in check_autovacuum(ON, {"timers": ["fillfactor=70"]})] == [Status.OK]
    for name in ("autovacuum", "track_counts"):
        (finding,) = check_autovacuum({**ON, name: Setting("off", "configuration file")}, {})
        assert (finding.status, f"{name} = on" in (finding.remedy or "")) == (Status.WARN, True)
    (finding,) = check_autovacuum(ON, {"timers": ["fillfactor=70", "autovacuum_enabled=False"], "others": []})
    assert (finding.status, finding.remedy) == (Status.WARN, "ALTER TABLE timers RESET (autovacuum_enabled);")
