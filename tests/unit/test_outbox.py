"""The pure parts of the outbox, and what its client refuses."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from timer_service.client import TimerServiceError
from timer_service.client.outbox import Outbox, OutboxRelay
from timer_service.client.outbox.instants import fix
from timer_service.client.outbox.store import OutboxRow
from timer_service.client.outbox.windows import windows

NOW = 4_102_444_800_000  # 2100-01-01
DUE = datetime(2100, 1, 1, tzinfo=UTC)


def test_durations_count_from_the_moment_of_storing() -> None:
    """They become instants. A duration that counts from another instant stays, and so does what is an instant."""
    timer = {"serviceCallId": "a", "dueIn": "PT1.5S", "lateBy": "PT1H", "data": {"dueIn": "PT1S"}}
    assert fix("ScheduleTimer", timer, NOW) == {
        "serviceCallId": "a",
        "dueAt": "2100-01-01T00:00:01.500Z",
        "lateBy": "PT1H",
        "data": {"dueIn": "PT1S"},
    }
    workflow = {"startIn": "PT1H", "deadlineIn": "P1D"}
    instants = {"startAt": "2100-01-01T01:00:00.000Z", "deadlineAt": "2100-01-02T00:00:00.000Z"}
    assert fix("StartWorkflow", workflow, NOW) == instants
    assert fix("StartWorkflow", instants, NOW) == instants
    schedule = {"cron": "@daily", "start": {"deadlineIn": "P1D"}, "catchUp": {"lateBy": "PT1M"}}
    assert fix("PutSchedule", schedule, NOW) == schedule


def test_a_message_to_a_workflow_has_an_id() -> None:
    """So the service takes it once, also if it is sent twice. An id of the user stays."""
    first, second = (fix("SendToWorkflow", {"name": "paid"}, NOW)["messageId"] for _ in range(2))
    assert first != second
    assert fix("SendToWorkflow", {"messageId": "mine"}, NOW) == {"messageId": "mine"}


def row(tenant: str, **payload: Any) -> OutboxRow:
    return OutboxRow(0, tenant, "any", "", json.dumps({"payload": payload}))


def test_windows_keep_the_order_of_each_thing() -> None:
    """A second command about a thing, and one about many things, wait until those before them are stored."""
    one = row("acme", serviceCallId="1")
    two = row("acme", serviceCallId="2")
    others = row("other", serviceCallId="1")
    prefix = row("acme", prefix="order-")
    signal = row("acme", signalId="s", workItemId="item")
    transition = row("acme", workItemId="item", to="open")
    unreadable = OutboxRow(0, "acme", "any", "", "no JSON")
    cases = [
        ([one, two, others], [[one, two, others]]),
        ([one, two, one, others], [[one, two], [one, others]]),
        ([one, prefix, two], [[one], [prefix], [two]]),
        ([signal, one, transition], [[signal, one], [transition]]),
        ([unreadable, one], [[unreadable], [one]]),
        ([], []),
    ]
    for rows, expected in cases:
        assert list(windows(rows)) == expected
    assert [len(each) for each in windows([row("acme", serviceCallId=str(n)) for n in range(1200)])] == [500, 500, 200]


async def test_an_outbox_only_stores_commands() -> None:
    """Queries, watches and the streams need a connection to the broker, and the error says so."""
    client = Outbox().on(None)
    for wrong in (
        lambda: client.timers.get("acme", "order-1"),
        lambda: anext(client.timers.list("acme")),
        lambda: anext(client.timers.watch("acme")),
        lambda: client.runs.get("acme", "run-1"),
        lambda: client.dead_letters.list("acme"),
    ):
        with pytest.raises(TimerServiceError, match="an outbox only stores commands"):
            await wrong()


async def test_wrong_arguments() -> None:
    """They raise ValueError with the name of the argument, before anything is stored."""
    for table in ("", "Orders", "a b", "a;drop", "1a", "x" * 49, 7):
        with pytest.raises(ValueError, match=r"^table must"):
            Outbox(table)  # type: ignore[arg-type]
    for database in ("", ":memory:", "sqlite:///x.db", "postgresql+asyncpg://x", 7):
        with pytest.raises(ValueError, match=r"^database must"):
            OutboxRelay(Outbox(), database)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^outbox must"):
        OutboxRelay("timer_outbox", "x.db")  # type: ignore[arg-type]
    client = Outbox().on(None)
    with pytest.raises(ValueError, match=r"^due_in must lie"):
        await client.timers.schedule("acme", "order-1", due_in=timedelta(-1))
    with pytest.raises(ValueError, match=r"^data must be smaller"):
        await client.timers.schedule("acme", "order-1", DUE, data="x" * 1_100_000)
