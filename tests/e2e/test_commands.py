"""Valid and invalid commands over the real broker."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig

from tests.e2e.conftest import ON_SQLITE, User, check_fired, iso
from tests.harness.processes import NatsServer, Service, body

SUBJECT = "timer.cmd.v1.acme.schedule-timer"


def payload(call: str, due_at: str) -> dict[str, str]:
    return {"tenantId": "acme", "serviceCallId": call, "dueAt": due_at}


async def test_past_due_time_fires_at_once(user: User, service: Service) -> None:
    """A timer whose due time is long past fires within a second."""
    due = {"call-1": 1_000_000_000_000}
    published = time.time()
    await user.schedule(due, data={"kept": [1, None, "ü"]})
    await user.until_stored("TIMER_EVT", 1, seconds=1)
    (fired,) = await user.fired()
    assert check_fired([fired], due) == 0
    assert fired.stored_at_ms / 1000 - published < 1
    assert fired.event["payload"]["data"] == {"kept": [1, None, "ü"]}


REJECTED = {
    "no-offset": (SUBJECT, body("ScheduleTimer", "acme", payload("a", "2030-01-01T09:00:00")), "INVALID_PAYLOAD"),
    "year-1": (SUBJECT, body("ScheduleTimer", "acme", payload("a", "0001-01-01T00:00:00Z")), "DUE_AT_OUT_OF_RANGE"),
    "10-MB": (SUBJECT, b'"' + b"x" * 10_000_000 + b'"', "TOO_LARGE"),
    "not-json": (SUBJECT, b"\xff\x00 no", "INVALID_JSON"),
    "other-tenant": (SUBJECT, body("ScheduleTimer", "evil", payload("a", "2030-01-01T09:00:00Z")), "TENANT_MISMATCH"),
    "other-type": ("timer.cmd.v1.acme.cancel", body("ScheduleTimer", "acme", {}), "TYPE_MISMATCH"),
    "unknown-type": (SUBJECT, body("SheduleTimer", "acme", {}), "UNKNOWN_TYPE"),
    "no-envelope": (SUBJECT, b"[]", "INVALID_ENVELOPE"),
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Yield a server that accepts bodies of 10 MB."""
    async with NatsServer(tmp_path / "nats", "max_payload: 16MB") as server:
        yield server


@ON_SQLITE
async def test_invalid_command_becomes_dead_letter_and_event(user: User, service: Service) -> None:
    """Each kind of invalid command becomes a dead letter with its body, and a CommandRejected with its code."""
    for name, (subject, content, _) in REJECTED.items():
        await user.js.publish(subject, content, headers={"Nats-Msg-Id": name, "Nats-Expected-Stream": "TIMER_CMD"})
    await user.until_stored("TIMER_DLQ", len(REJECTED))
    await user.until_handled()
    letters = await user.read("TIMER_DLQ")
    for letter in letters:
        originals = json.loads(letter.headers["Timer-Original-Headers"])
        subject, content, code = REJECTED[originals["Nats-Msg-Id"][0]]
        assert letter.data == content
        assert letter.headers["Timer-Error-Code"] == code
        assert letter.headers["Timer-Source-Subject"] == subject
        assert int(letter.headers["Timer-Source-Sequence"]) > 0
        assert originals["Nats-Expected-Stream"] == ["TIMER_CMD"]
    assert len(letters) == len(REJECTED)
    rejections = [
        json.loads(each.data)["payload"] for each in await user.read("TIMER_EVT", "timer.evt.v1.acme.command-rejected")
    ]
    assert sorted(each["code"] for each in rejections) == sorted(code for *_, code in REJECTED.values())
    assert (await service.page("/readyz"))[0] == 200
    await user.schedule({"still-alive": int(time.time() * 1000)})
    await user.until_stored("TIMER_EVT", len(REJECTED) + 1)


async def test_invalid_command_does_not_affect_a_thousand_others(user: User, service: Service) -> None:
    """One invalid command is rejected, and the timers of a thousand valid commands fire."""
    due = {f"call-{index}": int(time.time() * 1000) for index in range(1000)}
    good = [(SUBJECT, body("ScheduleTimer", "acme", payload(call, iso(due_at)))) for call, due_at in due.items()]
    await user.send([*good[:500], (SUBJECT, b"poison"), *good[500:]])
    await user.until_stored("TIMER_EVT", 1001)
    assert check_fired(await user.fired(), due) == 0
    (letter,) = await user.read("TIMER_DLQ")
    assert letter.data == b"poison"


@pytest.mark.slow
async def test_refused_events_do_not_delay_others(tmp_path: Path, broker: NatsServer, user: User) -> None:
    """100 refused events do not delay 1,000 others, and are published when the stream accepts them."""
    async with Service(tmp_path / "service", broker.url):
        config = (await user.js.stream_info("TIMER_EVT")).config
    async with Service(tmp_path / "service", broker.url, TIMER_MANAGE_STREAMS="false"):
        await user.js.update_stream(config.evolve(max_msg_size=2_000))  # a service that manages it changes it back
        due_at = int(time.time() * 1000) + 2_500
        refused = {f"large-{index}": due_at for index in range(100)}
        good = {f"call-{index}": due_at for index in range(1000)}
        await user.schedule(refused, data="x" * 3_000)
        await user.schedule(good)
        await user.until_handled()
        assert time.time() * 1000 < due_at
        await user.until_stored("TIMER_EVT", 1000)
        fired = await user.fired()
        assert check_fired(fired, good) == 0
        assert max(each.stored_at_ms for each in fired) - due_at < 3_000
        await user.js.update_stream(StreamConfig(**{**vars(config), "max_msg_size": -1}))
        await user.until_stored("TIMER_EVT", 1100)
        assert check_fired(await user.fired(), good | refused) == 0


@ON_SQLITE
async def test_outcome_is_sent_only_to_an_inbox(user: User, service: Service) -> None:
    """The service sends the outcome to the inbox that a command names. It ignores any other reply subject."""
    other_replies = await user.connection.subscribe("elsewhere")
    inbox = user.connection.new_inbox()
    replies = await user.connection.subscribe(inbox)
    command = body("ScheduleTimer", "acme", payload("call-1", "2030-01-01T09:00:00Z"), id="mine")
    await user.js.publish(SUBJECT, command, headers={"Timer-Reply-To": "elsewhere"})
    await user.js.publish(SUBJECT, command, headers={"Timer-Reply-To": inbox})
    reply = json.loads((await replies.next_msg(5)).data)
    assert (reply["commandId"], reply["outcome"]) == ("mine", "unchanged")
    assert (reply["timer"]["dueAt"], reply["timer"]["state"]) == ("2030-01-01T09:00:00.000Z", "Scheduled")
    await user.js.publish(SUBJECT, b"{}", headers={"Timer-Reply-To": inbox})
    error = json.loads((await replies.next_msg(5)).data)["error"]
    assert error["code"] == "INVALID_ENVELOPE"
    assert {"path": "tenantId", "reason": "is missing"} in error["errors"]
    assert other_replies.pending_msgs == 0


@ON_SQLITE
async def test_service_creates_durable_streams(broker: NatsServer, service: Service) -> None:
    """The streams are durable, and refuse messages when full. Only that of commands refuses atomic batches."""
    connection = await nats.connect(broker.url)
    for stream in ("TIMER_CMD", "TIMER_EVT", "TIMER_DLQ"):
        config = (await connection.jetstream().stream_info(stream)).config
        assert (config.storage, config.discard) == ("file", "new")
        assert bool(config.allow_atomic) is (stream != "TIMER_CMD")
    await connection.close()
