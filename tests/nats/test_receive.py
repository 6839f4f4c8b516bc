"""`TimerApp` with a real nats-server: what only NATS has. See tests/ports/test_client_receive.py."""

import json
import signal
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import NatsServer
from tests.harness.receiving import Publisher, publisher
from tests.harness.waiting import until
from timer_service.client import (
    DueTimeReached,
    MemorySeen,
    NoAnswerError,
    TimerApp,
)
from timer_service.client.nats import subscription
from timer_service.client.receive import attempt as attempts_module
from timer_service.client.receive import delivery as delivery_module

SECOND = timedelta(seconds=1)


@pytest.fixture
async def events(server: NatsServer) -> AsyncIterator[Publisher]:
    async with publisher(server.url) as found:
        yield found


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make failed events come again soon."""
    monkeypatch.setattr(delivery_module, "FIRST_DELAY", timedelta(milliseconds=20))
    monkeypatch.setattr(attempts_module, "LONGEST_DELAY", timedelta(milliseconds=50))


def collecting(url: str, *, name: str = "orders", **options: Any) -> tuple[TimerApp, list[str]]:
    """Return an app that handles every DueTimeReached, and the ids of the timers that it has handled."""
    app, handled = TimerApp(url, tenant="acme", name=name, **options), list[str]()

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        handled.append(event.timer_id)

    return app, handled


async def test_the_broker_filters(server: NatsServer, events: Publisher) -> None:
    """The consumer gets no event of another type or topic."""
    app, handled = TimerApp(server.url, tenant="acme", name="orders"), list[str]()

    @app.on_due("unpaid")
    async def handle(event: DueTimeReached) -> None:
        handled.append(event.timer_id)

    async with app.running():
        await events.fire("a", topic="paid")
        await events.fire("b")
        await events.publish("RunCompleted", runId="r", name="c")
        await events.fire("d", topic="unpaid")
        await until(lambda: handled == ["d"])
        await events.until_acknowledged()
        info = await events.js.consumer_info("TIMER_EVT", "acme~orders")
        assert info.delivered is not None
        assert info.delivered.consumer_seq == 1


class TransactionSeen(MemorySeen):
    """A store whose marks are in a transaction, which is a set here."""

    async def add_in(self, connection: Any, consumer: str, event_id: str) -> bool:
        if (consumer, event_id) in connection:
            return False
        connection.add((consumer, event_id))
        return True

    async def add(self, *_: str) -> None:
        raise AssertionError("the handler has marked the event itself")


@pytest.mark.parametrize("missing", ["stream", "JetStream", "consumer"])
async def test_what_is_missing_at_the_start(tmp_path: Path, missing: str) -> None:
    """The start raises `NoAnswerError` that says what is missing, and what to do."""
    options: Mapping[str, Any] = {"stream": "TIMER_EVT_acme"} if missing == "consumer" else {}
    errors = {
        "stream": "the broker has no stream TIMER_EVT: start timer-service",
        "JetStream": "no JetStream for this login; .* tenants events acme`, and give stream='TIMER_EVT_acme'",
        "consumer": "the consumer acme of the stream TIMER_EVT_acme does not answer; the operator makes it",
    }
    config = "port: 4222" if missing == "JetStream" else None
    async with NatsServer(tmp_path / "nats", config=config) as server:
        app, _ = collecting(server.url, **options)
        with pytest.raises(NoAnswerError, match=errors[missing]):
            await app.serve()


async def test_a_server_that_hangs(
    server: NatsServer, events: Publisher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If neither events nor heartbeats come, the app pulls again. An event reaches it by the old or the new pull."""
    monkeypatch.setattr(subscription, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(subscription, "LOOK_SECONDS", 0.05)
    app, handled = collecting(server.url)
    async with app.running():
        server.signal(signal.SIGSTOP)
        await until(lambda: "no answer to a pull" in caplog.text)
        server.signal(signal.SIGCONT)
        await events.fire("a")
        await until(lambda: handled == ["a"])


async def test_two_transactions_in_a_handler(server: NatsServer, events: Publisher) -> None:
    """The second one is refused, and the event is parked with the reason: only the first effect has happened."""
    app = TimerApp(server.url, tenant="acme", name="orders", seen=TransactionSeen())
    committed: set[Any] = set()
    effects: list[str] = []

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        for effect in "ab":
            async with app.once(event, committed):
                effects.append(effect)

    parked = await events.connection.subscribe("timer.cmd.v1.acme.>")
    async with app.running():
        await events.fire("a")
        message = await parked.next_msg(timeout=10)
    assert effects == ["a"]
    assert "uses `once` in two transactions" in json.loads(message.data)["payload"]["reason"]
