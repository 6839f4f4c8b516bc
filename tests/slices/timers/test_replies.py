"""What a tenant hears of its commands: replies, and what becomes of a command that is rejected."""

import json
from typing import Any

import pytest

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW, after, iso
from tests.harness.timers import Timers
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.codec import REPLY_TO

DUE = after(minutes=1)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INBOX = "_INBOX.me.1"


def replies(timers: Timers) -> list[Any]:
    assert {reply.to for reply in timers.broker.replies} <= {INBOX}
    return [json.loads(reply.body) for reply in timers.broker.replies]


async def test_replies(timers: Timers) -> None:
    """A reply has the outcome and the timer as its command left it, also if later commands of the batch change it."""
    fields: dict[str, Any] = {"data": {"a": None}, "envelope": {"id": "cmd-1", "correlationId": "corr-1"}}
    timers.send(schedule_timer(due_at=DUE, **fields), {REPLY_TO: INBOX})
    timers.send(schedule_timer(due_at=DUE + 1, envelope={"id": "cmd-2"}), {REPLY_TO: INBOX})
    timers.send(cancel_timer(envelope={"id": "cmd-3"}), {REPLY_TO: INBOX}, message="cancel-timer")
    timers.send(cancel_timer("no", envelope={"id": "cmd-4"}), {REPLY_TO: INBOX}, message="cancel-timer")
    await timers.consume()
    view = {
        "tenantId": "acme",
        "serviceCallId": "call-1",
        "dueAt": iso(DUE),
        "state": "Scheduled",
        "registeredAt": iso(NOW),
        "attempt": 0,
    }
    first, moved = {**view, "correlationId": "corr-1", "data": {"a": None}}, {**view, "dueAt": iso(DUE + 1)}
    assert replies(timers) == [
        {"commandId": "cmd-1", "outcome": "scheduled", "timer": first},
        {"commandId": "cmd-2", "outcome": "rescheduled", "timer": moved},
        {"commandId": "cmd-3", "outcome": "cancelled", "timer": {**moved, "state": "Cancelled"}},
        {"commandId": "cmd-4", "outcome": "not_found"},
    ]


async def test_reply_comes_after_commit(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply is sent after the commit."""
    timers.send(schedule_timer(), {REPLY_TO: INBOX})
    seen: list[Any] = []
    send = timers.broker.reply

    async def look_first(answers: Any) -> None:
        seen.append((await timers.row())["state"])
        await send(answers)

    monkeypatch.setattr(timers.broker, "reply", look_first)
    await timers.consume()
    assert (seen, len(replies(timers))) == (["Scheduled"], 1)


async def test_dead_letter(timers: Timers) -> None:
    """A dead letter has the body and headers of the command, the error, and the source of the command."""
    body = b'{"type": "ScheduleTimer",\xff'
    headers = {"X-Mine": "1", "Nats-Msg-Id": "a", "nats-rollup": "all", "Nats-Expected-Stream": "OTHER"}
    position = timers.send(body, headers)
    await timers.consume()
    (letter,) = timers.broker.dead_letters
    assert letter.address == Address(Kind.DEAD_LETTER, "acme", "schedule-timer")
    assert letter.body == body
    message = letter.headers["Timer-Error-Message"]
    assert message.startswith("the body is not JSON")
    assert letter.headers == {
        "Timer-Original-Headers": json.dumps({name: [value] for name, value in headers.items()}, separators=(",", ":")),
        "Timer-Error-Code": "INVALID_JSON",
        "Timer-Error-Message": message,
        "Timer-Source-Subject": "cmd.acme.schedule-timer",
        "Timer-Source-Sequence": str(position.sequence),
    }
    assert timers.metrics.dead_letters == {"INVALID_JSON": 1}


async def test_command_rejected(timers: Timers) -> None:
    """The event CommandRejected and the reply name the command, the reason, and each invalid field."""
    body = schedule_timer("", "tomorrow", envelope={"id": "cmd-1", "correlationId": "corr-1"})
    timers.send(body, {"traceparent": TRACEPARENT, REPLY_TO: INBOX})
    await timers.consume()
    (event,) = timers.broker.events
    rejection = json.loads(event.body)
    payload = rejection.pop("payload")
    assert event.address == Address(Kind.EVENT, "acme", "command-rejected")
    assert event.headers == {"traceparent": TRACEPARENT}
    assert rejection == {
        "id": event.id,
        "type": "CommandRejected",
        "tenantId": "acme",
        "correlationId": "corr-1",
        "causationId": "cmd-1",
        "timestampMs": NOW,
    }
    ids = payload["commandId"], payload["commandType"], payload["code"]
    assert ids == ("cmd-1", "ScheduleTimer", "INVALID_PAYLOAD")
    assert [each["path"] for each in payload["errors"]] == ["payload.serviceCallId", "payload.dueAt"]
    assert all(each["reason"] in payload["message"] for each in payload["errors"])
    (reply,) = replies(timers)
    assert (set(reply), reply["commandId"]) == ({"commandId", "error"}, "cmd-1")
    assert (reply["error"]["code"], reply["error"]["errors"]) == ("INVALID_PAYLOAD", payload["errors"])


async def test_rejection_goes_to_the_addressed_tenant(timers: Timers) -> None:
    """If a command names another tenant than its address, the event goes to the tenant of the address."""
    timers.send(schedule_timer(tenant="victim"), tenant="acme")
    timers.send(schedule_timer(), tenant="Ä!")  # no tenant can have this name, so there is only a dead letter
    await timers.consume()
    (event,) = timers.broker.events
    assert (event.address.tenant, json.loads(event.body)["payload"]["code"]) == ("acme", "TENANT_MISMATCH")
    assert [letter.address.tenant for letter in timers.broker.dead_letters] == ["acme", "~unreadable"]
    assert timers.outcomes() == {"rejected": 2}
