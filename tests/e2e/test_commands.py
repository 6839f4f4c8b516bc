"""Valid and invalid commands over the real broker."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import NatsServer, Service, body

SUBJECT = "timer.cmd.v1.acme.schedule-timer"


def payload(call: str, due_at: str) -> dict[str, str]:
    return {"tenantId": "acme", "serviceCallId": call, "dueAt": due_at}


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
