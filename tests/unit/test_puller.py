"""How the puller takes the messages that it receives."""

from typing import Any, cast

import pytest

from timer_service.adapters.nats.buffer import Buffer
from timer_service.adapters.nats.intake_client import IntakeClient, ReadMessage
from timer_service.adapters.nats.puller import Puller
from timer_service.adapters.nats.pulls import Demand
from timer_service.adapters.nats.stored import StoredMessage
from timer_service.adapters.nats.subjects import Subjects


class Client:
    """A client that is not connected."""

    is_connected = False

    def new_inbox(self) -> str:
        return "_INBOX.pulls"


class Stay:
    def __init__(self) -> None:
        self.buffer = Buffer(1_000_000)


def command(sequence: int, body: bytes = b"{}") -> ReadMessage:
    reply = f"$JS.ACK.TIMER_CMD.timer-service.1.{sequence}.{sequence}.1700000000000000000.0"
    return ReadMessage(b"timer.cmd.v1.acme.schedule-timer", reply.encode(), b"NATS/1.0\r\n\r\n", body)


def pulling(stay: Any, demand: int) -> Puller:
    """Return a puller whose newest pull asks for a number of commands."""
    nothing: Any = None
    client = cast("IntakeClient", Client())
    puller = Puller(client, Subjects("timer"), nothing, batch_bytes=1, stay=lambda: stay, on_lost=print)
    puller.joined()
    puller._pulls = puller._pulls.sent(Demand(1, demand, None), 0.0)
    return puller


@pytest.mark.parametrize(("demand", "outstanding"), [(3, False), (4, True)])
def test_commands_that_are_read_together(demand: int, *, outstanding: bool) -> None:
    """All commands are buffered and count for the pull. The first ones wake the subscription."""
    stay = Stay()
    puller = pulling(stay, demand)
    puller._receive([command(1), command(2), command(3)])
    assert (len(stay.buffer), puller._pulls.received, puller._pulls.outstanding) == (3, 3, outstanding)
    assert puller.arrived.is_set()


def test_the_subscription_is_not_woken_again() -> None:
    """Commands behind others do not wake the subscription before the pull has brought all."""
    puller = pulling(Stay(), 4)
    puller._receive([command(1)])
    puller.arrived.clear()
    puller._receive([command(2), command(3)])
    woken = [puller.arrived.is_set()]
    puller._receive([command(4)])
    assert [*woken, puller.arrived.is_set()] == [False, True]


def test_an_error_loses_only_one_message(caplog: pytest.LogCaptureFixture) -> None:
    """If a command cannot be buffered, those that were read with it are."""
    stay = Stay()
    puller = pulling(stay, 10)
    append = stay.buffer.append

    def fail_once(message: StoredMessage) -> None:
        if message.receipt.sequence == 2:
            raise ZeroDivisionError
        append(message)

    stay.buffer.append = fail_once  # type: ignore[method-assign]
    puller._receive([command(1), command(2), command(3)])
    assert [each.receipt.sequence for each in stay.buffer.take(10)] == [1, 3]
    assert "a message could not be processed" in caplog.text


def test_commands_that_come_while_the_consumer_is_lost() -> None:
    """They are not buffered, but given back."""
    stay = Stay()
    puller = pulling(stay, 10)
    puller._receive([command(1)])
    puller.lose()
    giving_back = puller._receive([command(2), command(3)])
    assert giving_back is not None
    giving_back.close()  # type: ignore[attr-defined]
    assert len(stay.buffer) == 1
