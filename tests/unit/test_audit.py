"""The limit of the audit log."""

import logging
from collections import Counter

import pytest

from timer_service.core.limits.audit import OPERATOR_ACTION, REFUSED, REJECTED, AuditLog


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def audit(time: Time, caplog: pytest.LogCaptureFixture) -> AuditLog:
    caplog.set_level(logging.INFO)
    return AuditLog(time)


def written(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """Return how many lines each tenant has."""
    return Counter(vars(record)["tenant"] for record in caplog.records if record.message == REJECTED)


def counted(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """Return how many lines of each kind were left out."""
    lines = [vars(record) for record in caplog.records if record.message == "audit lines left out"]
    return {line["line"]: line["count"] for line in lines}


async def test_flood(audit: AuditLog, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    """A flood of one tenant is ten lines and a count each second. Other tenants keep their lines."""
    for _ in range(1000):
        audit.record(REJECTED, "loud")
    audit.record(REJECTED, "quiet")
    time.now += 1
    audit.record(REJECTED, "quiet")
    assert (written(caplog), counted(caplog)) == ({"loud": 10, "quiet": 2}, {REJECTED: 990})


async def test_many_tenants(audit: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    """A flood with 10,000 names of tenants is 100 lines, and the next pass of the loop writes the count."""
    for number in range(10_000):
        audit.record(REJECTED, f"tenant-{number}")
    for _ in range(2):
        await audit.tick(0)
    assert (written(caplog).total(), counted(caplog)) == (100, {REJECTED: 9_900})
    assert caplog.messages.count("audit lines left out") == 1


async def test_flood_hides_no_operator(audit: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    """A flood of a tenant, or of many tenants, leaves out no other kind of line, also not of the same tenant."""
    for number in range(10_000):
        audit.record(REFUSED, "acme")
        audit.record(REJECTED, f"tenant-{number}")
    audit.record(OPERATOR_ACTION, "acme", command_id="retry")
    assert (caplog.messages[-1], vars(caplog.records[-1])["command_id"]) == (OPERATOR_ACTION, "retry")


async def test_long_tenant(audit: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    """The name of a tenant is written as printable text of at most 64 characters."""
    audit.record(REJECTED, "\x1b[2J" + "x" * 1000)
    (tenant,) = written(caplog)
    assert (tenant[:8], len(tenant)) == (r"\x1b[2Jx", 64)
