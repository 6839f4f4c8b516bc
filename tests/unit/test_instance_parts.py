"""What the parts of an instance hold: the values of the settings, and each shared part once."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.instance import Instance, InstanceBroker
from tests.harness.reachable import attributes, reachable
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.limits.audit import AuditLog
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.health import OutageLog
from timer_service.core.requests.fair_queue import QueueLimits
from timer_service.core.requests.query import RUNNING, WAITING
from timer_service.core.values.budget import MIB, Budget
from timer_service.core.values.message import MAX_MESSAGE_BYTES
from timer_service.metrics import Metrics
from timer_service.workflows.tasks.dispatcher import Dispatcher

LIMITS = TenantLimits(default=Limits(pending_timers=3))
BUDGET = Budget.of(192 * MIB)
SETTINGS: Mapping[str, Any] = {
    "batch_size": 7,
    "max_attempts": 9,
    "visibility_timeout": 11_000,
    "polling_interval": 1234,
    "retention_days": 2.5,
    "reply_prefix": "_REPLY.",
    "memory_budget": "192MiB",
    "limits_file": LIMITS,
}
HELD = {
    "_batch_size": {7},
    "_max_attempts": {9, 2**31},
    "hold_ms": {11_000},
    "_keep_ms": {216_000_000},
    "_reply_prefix": {"_REPLY."},
    "_batch_bytes": {BUDGET.part},
    "_claim_bytes": {BUDGET.claim, BUDGET.portion},
}
"""The attributes that have values of the settings, whichever part has them."""
SHARED = (
    SqliteDatabase,
    ManualClock,
    InstanceBroker,
    Metrics,
    AuditLog,
    EventAllowances,
    Quotas,
    TenantLimits,
    random.Random,
)


@pytest.fixture
async def instance(sqlite: SqliteDatabase, clock: ManualClock) -> Instance:
    instance = Instance(sqlite, clock, **SETTINGS)
    assert instance.app._requests is not None
    await instance.app._requests.open(instance.broker, instance.app._wakeups)
    return instance


def numbers(values: set[Any]) -> set[Any]:
    return {each for each in values if isinstance(each, int | float | str)}


def claim_bytes(worker: Any) -> Any:
    """Return the most bytes that a worker claims."""
    return (worker._claims if isinstance(worker, Dispatcher) else worker)._claim_bytes


async def test_settings(instance: Instance) -> None:
    """Each part that needs a setting has its value, in the right unit."""
    parts = reachable(instance.app)
    found = {name: numbers(set().union(*attributes(parts, name).values())) for name in HELD}
    assert found == HELD
    assert {each for each in parts if isinstance(each, Budget)} == {BUDGET}
    assert {each.limits.default.pending_timers for each in parts if isinstance(each, Quotas)} == {3}
    queries = QueueLimits(BUDGET.queries - RUNNING * MAX_MESSAGE_BYTES, WAITING)
    assert {each for each in parts if isinstance(each, QueueLimits)} == {queries, QueueLimits(BUDGET.requests, 20_000)}


async def test_polling_intervals(instance: Instance) -> None:
    """Loops with work that commands add poll at the configured interval, upkeep every 5 s, and the rest rarely."""
    polls = {each.name: each._poll_ms for each in instance.app._loops}
    rare = {name: 60_000 for name in polls if name.endswith("-retention")} | {"row-counts": 15_000}
    upkeep = dict.fromkeys(("clock", "file", "database", "clock-repair", "streams", "audit"), 5000)
    assert polls == {**dict.fromkeys(polls, 1234), **rare, **upkeep}
    others = attributes(reachable(instance.app), "_poll_ms")
    assert (others["Wakeups"], others["Dispatcher"]) == ({1234}, {1234})


@pytest.mark.parametrize("shared", SHARED)
async def test_shared_parts(instance: Instance, shared: type) -> None:
    """All parts of an instance have the same database, clock, broker, metrics, and so on."""
    assert len([each for each in reachable(instance.app) if isinstance(each, shared)]) == 1


async def test_events_and_dead_letters_are_published_apart(instance: Instance) -> None:
    """All relays of events record in one place whether these can be published, and that of dead letters in another."""
    workers: dict[str, Any] = {each: instance.loop(each)._worker for each in ("timers", "outbox", "dead-letters")}
    found = {name: each._publishing for name, each in workers.items()}
    assert found["timers"] is found["outbox"]
    assert found["dead-letters"] is not found["outbox"]


async def test_outages_are_logged_once(instance: Instance) -> None:
    """All parts share one log of the outages of the database, except the loop of the streams: it needs no database."""
    logs = [each for each in reachable(instance.app) if isinstance(each, OutageLog)]
    assert {id(each) for each in logs} == {id(instance.app._parts.outages), id(instance.loop("streams")._outages)}
    assert len(logs) == 2


async def test_claims_of_the_budget(instance: Instance) -> None:
    """The relays and the dispatcher claim no more than their share of the memory budget."""
    claims = {each: instance.loop(each)._worker for each in ("timers", "outbox", "tasks")}
    found = {each: claim_bytes(worker) for each, worker in claims.items()}
    assert found == {"timers": BUDGET.claim, "outbox": BUDGET.claim, "tasks": BUDGET.portion}


@pytest.mark.parametrize(("alone", "seconds"), [(True, float("inf")), (False, 10)])
async def test_counts_of_a_shared_database(
    sqlite: SqliteDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, alone: bool, seconds: float
) -> None:
    """The counts for the limits are valid for ever if no other instance can add rows."""
    monkeypatch.setattr(SqliteDatabase, "exclusive", alone)
    assert Instance(sqlite, clock, **SETTINGS).app._parts.quotas._valid_seconds == seconds
