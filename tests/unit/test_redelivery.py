"""When the redelivery of commands that were in flight is over."""

import time

import pytest

from tests.harness.builders import delivery
from timer_service.adapters.nats.durable import InFlight
from timer_service.adapters.nats.redelivery import Redelivery
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position


def commands(*sequences: int) -> list[Delivery]:
    return [delivery(position=Position(1, sequence)) for sequence in sequences]


def test_over_when_all_have_come() -> None:
    """It is over when each command that was in flight has come. New commands and repeats do not count."""
    redelivery = Redelivery(InFlight(number=2, last=10))
    found: list[bool] = []
    for batch in (commands(11, 12, 13), commands(9, 9), commands(10, 14)):
        redelivery.count(batch)
        found.append(redelivery.is_over())
    assert found == [False, False, True]


def test_over_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over after five seconds, because a deleted command never comes."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    redelivery = Redelivery(InFlight(number=2, last=10))
    monkeypatch.setattr(time, "monotonic", lambda: now + 4.9)
    before = redelivery.is_over()
    monkeypatch.setattr(time, "monotonic", lambda: now + 5)
    assert (before, redelivery.is_over()) == (False, True)
