"""The end of the backlog, from what JetStream says about the consumer."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from timer_service.adapters.nats import backlog
from timer_service.adapters.nats.backlog import Backlog


class Consumer:
    """A consumer with answers that the test sets."""

    def __init__(self, last_sequence: int) -> None:
        self.last_sequence = last_sequence
        self.created = "2026-01-01T00:00:00Z"
        self.delivered = self.settled = self.waiting = 0
        self.messages: int | None = None
        """How many messages the stream has; None if none was deleted."""

    async def info(self) -> Mapping[str, Any]:
        return {
            "created": self.created,
            "delivered": {"stream_seq": self.delivered},
            "ack_floor": {"stream_seq": self.settled},
            "num_pending": self.waiting,
            "num_ack_pending": self.delivered - self.settled,
        }

    async def stream(self) -> Mapping[str, Any]:
        messages = self.last_sequence if self.messages is None else self.messages
        return {"state": {"messages": messages, "last_seq": self.last_sequence}}


class SlowConsumer(Consumer):
    """A consumer whose answers come in another turn of the event loop."""

    async def info(self) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return await super().info()


async def test_count_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of no waiting commands is believed only after a moment: it may not show the newest ones yet."""
    consumer = Consumer(5)
    consumer.delivered = consumer.settled = 4
    found = Backlog(consumer)  # type: ignore[arg-type]
    assert [await found.is_settled(restart=True), await found.is_settled(restart=False)] == [False, False]
    monkeypatch.setattr(backlog, "_COUNT_LAG_SECONDS", 0)
    assert await found.is_settled(restart=False)


async def test_count_that_is_not_needed() -> None:
    """The backlog ends at once when the newest command of its start is settled, even if others wait."""
    consumer = Consumer(5)
    consumer.waiting = 1
    consumer.delivered = consumer.settled = 5
    found = Backlog(consumer)  # type: ignore[arg-type]
    assert await found.is_settled(restart=True)


async def test_progress_restarts_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are retried without success end the wait only if nothing is settled for ten minutes."""
    now = 1000.0
    monkeypatch.setattr(backlog, "time", SimpleNamespace(monotonic=lambda: now))
    consumer = Consumer(5)
    consumer.delivered = 5
    found = Backlog(consumer)  # type: ignore[arg-type]
    settled: list[bool] = [await found.is_settled(restart=True)]
    for floor in (1, 2, 3):
        now += 599
        consumer.settled = floor
        settled.append(await found.is_settled(restart=False))
    now += 599
    settled.append(await found.is_settled(restart=False))
    now += 1
    assert settled == [False] * 5
    assert await found.is_settled(restart=False)


async def test_newer_commands_do_not_belong_to_the_backlog() -> None:
    """Commands that were stored after the start of the backlog may be delivered and unsettled when it ends."""
    consumer = Consumer(5)
    consumer.delivered, consumer.settled = 5, 4
    found = Backlog(consumer)  # type: ignore[arg-type]
    settled = [await found.is_settled(restart=True)]
    consumer.last_sequence = consumer.delivered = 7
    consumer.settled = 5
    assert [*settled, await found.is_settled(restart=False)] == [False, True]


async def test_a_backlog_that_is_settled_ends() -> None:
    """After a backlog is settled, the next question begins a new one, with the commands that have come since."""
    consumer = Consumer(5)
    consumer.delivered = consumer.settled = 5
    found = Backlog(consumer)  # type: ignore[arg-type]
    settled = [await found.is_settled(restart=True)]
    consumer.last_sequence = consumer.delivered = 6
    settled.append(await found.is_settled(restart=False))
    assert settled == [True, False]


async def test_a_stream_whose_messages_were_all_deleted() -> None:
    """There is no backlog in an empty stream, although the consumer has not reached the last sequence."""
    consumer = Consumer(5)
    consumer.delivered = consumer.settled = 3
    consumer.messages = 0
    found = Backlog(consumer)  # type: ignore[arg-type]
    assert await found.is_settled(restart=True)


async def test_two_workers_ask_at_once() -> None:
    """Two workers that ask at the same moment both get an answer."""
    consumer = SlowConsumer(5)
    consumer.delivered = consumer.settled = 5
    found = Backlog(consumer)  # type: ignore[arg-type]
    settled = await asyncio.gather(*(found.is_settled(restart=True) for _ in range(3)))
    assert settled == [True, True, True]


@pytest.mark.parametrize("restart", [False, True])
async def test_each_backlog_has_the_whole_patience(monkeypatch: pytest.MonkeyPatch, *, restart: bool) -> None:
    """Commands that stood still in the last backlog, until it was given up or begun again, are waited for again."""
    now = 1000.0
    monkeypatch.setattr(backlog, "time", SimpleNamespace(monotonic=lambda: now))
    consumer = Consumer(5)
    consumer.delivered = 5
    found = Backlog(consumer)  # type: ignore[arg-type]
    settled = [await found.is_settled(restart=True)]
    for seconds in (599 if restart else 600, 1, 599, 1):
        now += seconds
        settled.append(await found.is_settled(restart=restart and seconds == 1 and len(settled) == 2))
    assert settled == [False, not restart, False, False, True]


async def test_a_consumer_that_is_created_again() -> None:
    """The backlog ends where the stream ends now if the consumer is another one: its stream may be another one too."""
    consumer = Consumer(5)
    consumer.delivered = consumer.settled = 4
    found = Backlog(consumer)  # type: ignore[arg-type]
    settled = [await found.is_settled(restart=True)]
    consumer.created, consumer.last_sequence = "2026-01-02T00:00:00Z", 10
    for sequence in (5, 10):
        consumer.delivered = consumer.settled = sequence
        consumer.waiting = consumer.last_sequence - sequence
        settled.append(await found.is_settled(restart=False))
    assert settled == [False, False, True]
