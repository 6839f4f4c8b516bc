"""The checks of doctor on PostgreSQL, on rows as the server sends them."""

from typing import Any

import pytest

from timer_service.adapters.postgres.database import MOST_CONNECTIONS, OLDEST_VERSION
from timer_service.cli.doctor.finding import Status
from timer_service.cli.doctor.postgres import check_connections, check_rights, check_server, check_settings

OLDEST = OLDEST_VERSION * 10_000
SERVER: dict[str, Any] = {"version": "15.4", "number": OLDEST, "database": "timers", "role": "svc", "standby": False}
SERVER |= {"schema": "public", "may_create": False}
ON = {
    name: {"setting": "on", "source": "default"}
    for name in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")
}


def test_server() -> None:
    """An old server and a standby are failures. The finding names the server."""
    fine = check_server(SERVER)
    assert (fine.status, fine.message) == (Status.OK, "PostgreSQL 15.4, database timers, as svc")
    assert check_server({**SERVER, "number": OLDEST - 1}).status is Status.FAIL
    assert check_server({**SERVER, "standby": True}).status is Status.FAIL


def test_rights() -> None:
    """The role must be able to create tables while a migration is pending. The remedy is the statement to run."""
    assert check_rights(SERVER, {}, pending=False).status is Status.OK
    assert check_rights(SERVER, {}, pending=True).remedy == (
        "GRANT CREATE ON SCHEMA public TO svc; or run `timer-service migrate up` as another role."
    )
    assert check_rights({**SERVER, "may_create": True}, {}, pending=True).status is Status.OK
    assert check_rights({**SERVER, "schema": None}, {}, pending=False).status is Status.FAIL
    finding = check_rights(SERVER, {"timers": ["UPDATE", "DELETE"]}, pending=False)
    assert (finding.status, finding.message) == (Status.FAIL, "lacks UPDATE, DELETE on timers")
    assert finding.remedy == "GRANT UPDATE, DELETE ON timers TO svc;"


@pytest.mark.parametrize(
    ("name", "source", "remedy"),
    [
        ("fsync", "default", "Set fsync = on in"),
        ("full_page_writes", "default", "Set full_page_writes = on in"),
        ("synchronous_commit", "database", "ALTER ROLE svc IN DATABASE timers SET synchronous_commit = on;"),
        ("synchronous_commit", "client", "Remove it from the options in TIMER_DATABASE_URL."),
        ("autovacuum", "default", "Set autovacuum = on in"),
    ],
)
def test_settings(name: str, source: str, remedy: str) -> None:
    """Each setting that can lose commits or keeps dead rows is a warning with a remedy."""
    assert [each.status for each in check_settings(ON, SERVER)] == [Status.OK, Status.OK]
    found = [*check_settings({**ON, name: {"setting": "off", "source": source}}, SERVER)]
    (finding,) = (each for each in found if each.status is Status.WARN)
    assert f"{name} = off" in finding.message
    assert str(finding.remedy).startswith(remedy)


@pytest.mark.parametrize(
    ("usable", "taken", "limit"),
    [
        (97, 97 - MOST_CONNECTIONS, None),
        (97, 98 - MOST_CONNECTIONS, "max_connections"),
        (MOST_CONNECTIONS, 0, None),
        (MOST_CONNECTIONS - 1, 0, "the CONNECTION LIMIT of role or database"),
    ],
)
def test_connections(usable: int, taken: int, limit: str | None) -> None:
    """One more instance must get all its connections; else the limit to raise is named."""
    finding = check_connections({"most": 100, "ours": 97, "taken": taken, "usable": usable})
    assert finding.status is (Status.OK if limit is None else Status.WARN)
    assert finding.message.startswith(f"max_connections = 100; {usable} for this role")
    assert finding.remedy is None or finding.remedy.startswith(f"Raise {limit}: ")
