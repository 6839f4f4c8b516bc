"""What the express lane remembers, and when it forgets it."""

import asyncio
import math
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from tests.harness.builders import command_address, delivery
from timer_service.adapters.nats import express_lane
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.express_lane import ExpressLane
from timer_service.adapters.nats.returned import Returned
from timer_service.adapters.nats.stay import Handle
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs, Part
from timer_service.core.values.budget import DEFAULT_BUDGET
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position

SECOND = timedelta(seconds=1)


async def refuse(*_arguments: object) -> None:
    """Read nothing: the server does not answer."""
    raise OSError


NO_STREAM = cast("DurableConsumer", SimpleNamespace(largest_body=1, read=refuse))


class Lane:
    """An express lane that reads nothing, and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lane = ExpressLane(
            NO_STREAM,
            Subjects("timer"),
            Epochs((Part(1, "created", 1, 0, 0),)),
            ["schedule-timer"],
            asyncio.Event(),
            batch_bytes=DEFAULT_BUDGET.batch,
            returned=Returned(DEFAULT_BUDGET.batch),
        )
        self.lane._next_round_at = math.inf

    def observe(self, batch: Sequence[Delivery], *, behind: int) -> None:
        """Observe a batch of the consumer. No listing while nothing waits is due."""
        self.lane._search._listed_at = self.now
        for each in batch:
            self.lane.record_delivered(each, overtakes=False)
        self.lane.observe(batch, behind=behind, end=None)


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Lane:
    """Return a lane with a clock of its own."""
    started = Lane()
    monkeypatch.setattr(express_lane, "time", SimpleNamespace(monotonic=lambda: started.now))
    return started


def delivered(sequence: int, tenant: str = "acme") -> Delivery:
    """Return a command that the consumer has delivered."""
    found = ahead(sequence, tenant)
    found.handle = Handle(f"reply-{sequence}", 1)
    return found


def ahead(sequence: int, tenant: str = "acme") -> Delivery:
    """Return a command that was read ahead."""
    return delivery(address=command_address(tenant), position=Position(1, sequence))


async def test_a_backlog_that_has_ended(lane: Lane) -> None:
    """When nothing waits any more, tenants are forgotten, and what the consumer has delivered since."""
    lane.lane.record_handled([ahead(5), ahead(10), ahead(50)])
    lane.lane.retry([ahead(6, "b"), ahead(60, "c")], SECOND)
    lane.observe([delivered(10, "a")], behind=0)
    known = lane.lane
    assert (known._served_at, known._waiting, known._handled, known._ahead) == ({}, {}, {50: 0}, {"c": 59})


async def test_a_backlog_that_goes_on(lane: Lane) -> None:
    """While commands wait, nothing is forgotten."""
    lane.lane.record_handled([ahead(5)])
    lane.lane.retry([ahead(6, "b")], SECOND)
    for sequence in (10, 11):
        lane.now += 1
        lane.observe([delivered(sequence, "a")], behind=10**9)
    known = lane.lane
    assert (list(known._served_at), list(known._waiting)) == (["a"], ["b"])
    assert (known._handled, known._ahead) == ({5: 0}, {"b": 5})


async def test_a_command_that_was_handled_ahead_is_forgotten_once(lane: Lane) -> None:
    """A command that was handled ahead is left out once, when the consumer delivers it. Its place is free then."""
    lane.lane.record_handled([ahead(5)])
    assert [lane.lane.forget_handled(sequence, 0) for sequence in (4, 5, 5)] == [False, True, False]


async def test_another_command_at_the_place_of_one_that_was_handled_ahead(lane: Lane) -> None:
    """A command that was stored at another time is not left out: its stream has replaced the one of the handled one."""
    lane.lane.record_handled([ahead(5)])
    assert not lane.lane.forget_handled(5, 1)


async def test_commands_behind_one_that_is_retried_are_read_again(lane: Lane) -> None:
    """If a command must be retried, later commands of its tenant that were read ahead are not handed out before it."""
    for command in (ahead(6), ahead(7, "b"), ahead(8)):
        lane.lane._read.append(command)
    lane.lane.retry([ahead(5)], SECOND)
    assert [each.position.sequence for each in lane.lane.take(10)] == [7]


async def test_a_command_that_overtakes_others(lane: Lane) -> None:
    """A command that was handed out is not read ahead again, and the commands of others before it still are."""
    for command in (ahead(4, "b"), ahead(5), ahead(6), ahead(7)):
        lane.lane._read.append(command)
    lane.lane.record_delivered(delivered(6), overtakes=True)
    positions = [lane.lane._position(tenant) for tenant in ("acme", "b")]
    assert [each.position.sequence for each in lane.lane.take(10)] == [4, 7]
    lane.observe([delivered(8)], behind=0)
    assert (positions, lane.lane._ahead, lane.lane._reached) == ([6, 0], {}, 8)


async def test_the_longest_retry_counts(lane: Lane) -> None:
    """Commands wait for their retry until the longest delay is over, whatever delays follow."""
    lane.lane.retry([delivered(1)], 10 * SECOND)
    lane.lane.retry([delivered(2)], SECOND)
    found = []
    for seconds in (0, 9, 1):
        lane.now += seconds
        found.append(lane.lane.awaits_retries)
    assert found == [True, True, False]


async def test_tenants_that_wait_take_turns(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """If more tenants wait than are served in one round, the next round begins with the others."""
    monkeypatch.setattr(express_lane, "_TENANTS_AT_ONCE", 2)
    lane.lane.retry([ahead(number, tenant) for number, tenant in enumerate("abc", 1)], timedelta(0))
    picked = []
    for _ in range(3):
        picked.append(lane.lane._pick_tenants(lane.now))
        await lane.lane._read_tenants(picked[-1])
    assert picked == [["a", "b"], ["c", "a"], ["b", "c"]]


async def test_tenants_that_wait_for_a_retry(lane: Lane) -> None:
    """A tenant whose command waits for a retry is left out until then. Delays that are over are forgotten."""
    lane.lane.retry([ahead(1, "a")], SECOND)
    lane.lane.retry([ahead(2, "b")], 2 * SECOND)
    found = []
    for seconds in (0, 1, 1):
        lane.now += seconds
        found.append((lane.lane._pick_tenants(lane.now), list(lane.lane._paused_until)))
    assert found == [([], ["a", "b"]), (["a"], ["b"]), (["a", "b"], [])]


async def test_a_tenant_with_a_command_in_a_batch_waits_again_soon(lane: Lane) -> None:
    """A tenant whose command was in a batch is looked for 200 ms later: its next command may wait long."""
    lane.observe([delivered(10, "a")], behind=10**9)
    found = []
    for seconds in (0.19, 0.02):
        lane.now += seconds
        found.append(lane.lane._is_starved("a", lane.now))
    assert found == [False, True]
