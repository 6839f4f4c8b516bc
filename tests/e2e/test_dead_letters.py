"""Dead letters, as an operator reads and resubmits them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.e2e.test_cli import Cli
from tests.harness.processes import NatsServer, Service, body
from timer_service.client import CommandError, TimerClient

SUBJECT = "timer.cmd.v1.{}.schedule-timer"
VALID = {"serviceCallId": "call-1", "dueAt": "2100-01-01T09:30:00Z"}


@pytest.fixture
def cli(tmp_path: Path, broker: NatsServer) -> Cli:
    return Cli(tmp_path, broker.url)


async def reject(user: User, *tenants: str) -> None:
    """Send a command for each of the tenants that the service rejects, in order."""
    for number, tenant in enumerate(tenants, 1):
        await user.js.publish(SUBJECT.format(tenant), body("ScheduleTimer", tenant, {"number": number}))
    await user.until_stored("TIMER_DLQ", len(tenants))


@ON_SQLITE
async def test_list_newest_first(user: User, service: Service, cli: Cli) -> None:
    """The newest dead letters of a tenant come first, in pages, with code and reason, and without those of others."""
    await reject(user, *(["acme"] * 3 + ["globex"]) * 3)
    pages: list[Any] = []
    cursor: tuple[str, ...] = ()
    for _ in range(3):
        done = await cli.run("dead-letters", "list", "acme", "--limit", "4", "--json", *cursor)
        pages.append([letter["sequence"] for letter in json.loads(done.stdout)])
        _, found, rest = done.stderr.partition("--cursor ")
        cursor = ("--cursor", rest.split()[0]) if found else ()
    assert pages == [[11, 10, 9, 7], [6, 5, 3, 2], [1]]
    assert cursor == ()
    everything = await cli.json("dead-letters", "list", "acme", "--all")
    assert [letter["sequence"] for letter in everything] == [11, 10, 9, 7, 6, 5, 3, 2, 1]
    assert {(each["tenantId"], each["code"]) for each in everything} == {("acme", "INVALID_PAYLOAD")}
    head, line = await cli.lines("dead-letters", "list", "--limit", "1", "--cursor", "2")
    assert head.split() == ["SEQUENCE", "CODE", "STORED", "COMMAND", "REASON"]
    assert line.split()[:2] == ["1", "INVALID_PAYLOAD"]
    assert "acme/schedule-timer" in line
    done = await cli.run("dead-letters", "list", "nobody")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no dead letters\n")


@ON_SQLITE
async def test_show(user: User, service: Service, cli: Cli) -> None:
    """A dead letter is shown with its reason, its headers and its command, to its tenant's name only."""
    await reject(user, "acme")
    shown = await cli.lines("dead-letters", "show", "acme", "1")
    assert shown[0] == "acme/1"
    assert shown[-1] == body("ScheduleTimer", "acme", {"number": 1}).decode()
    assert "  Timer-Source-Subject: timer.cmd.v1.acme.schedule-timer" in shown
    letter = await cli.json("dead-letters", "show", "acme", "1")
    assert json.loads(letter["body"])["payload"] == {"number": 1}
    assert (letter["sequence"], letter["sourceSequence"], letter["size"]) == (1, 1, len(letter["body"]))
    for tenant, number in (("globex", "1"), ("acme", "2")):
        done = await cli.run("dead-letters", "show", tenant, number)
        assert (done.returncode, done.stderr) == (1, f"not found: {tenant}/{number}\n")


@ON_SQLITE
async def test_resubmit(user: User, service: Service, cli: Cli) -> None:
    """A command that can be handled now is handled, also twice and with a known id. Others are rejected again."""
    await reject(user, "acme")
    command = body("ScheduleTimer", "acme", VALID, id="known")  # of an earlier version that rejected it
    await user.js.publish(SUBJECT.format("acme"), command, headers={"Nats-Msg-Id": "known"})
    await user.js.publish("timer.dlq.v1.acme.schedule-timer", command)
    await user.js.publish("timer.dlq.v1.acme.schedule-timer", b"", headers={"Timer-Body-Omitted": "true"})
    await user.js.publish("timer.dlq.v1.~unreadable.schedule-timer", command)
    assert await cli.lines("dead-letters", "resubmit", "acme", "2", "2") == ["acme/2  unchanged", "acme/2  unchanged"]
    assert [timer["serviceCallId"] for timer in await cli.json("timers", "list", "acme")] == ["call-1"]
    done = await cli.run("dead-letters", "resubmit", "acme", "2", "1", "3", "9")
    outcomes = [line.split("  ", 1)[1] for line in done.stdout.splitlines()]
    assert (done.returncode, outcomes[0], outcomes[3]) == (1, "unchanged", "not found")
    assert outcomes[1].startswith("rejected again: INVALID_PAYLOAD: ")
    assert outcomes[2].startswith("not sent: dead letter 3 lacks the command: it was too large. It is message ")
    ended = await cli.json("dead-letters", "resubmit", "acme", "2", "9", code=1)
    assert [each["sequence"] for each in ended] == [2, 9]
    assert ended[0]["outcome"] == "unchanged"
    assert ended[1]["error"]["code"] == "NOT_FOUND"


@ON_SQLITE
async def test_resubmit_what_is_no_command(user: User, service: Service, broker: NatsServer) -> None:
    """A body that is not JSON is rejected again. A subject that no command can have is a wrong argument."""
    await user.js.publish("timer.cmd.v1.acme.schedule-timer", b"{")
    await user.until_stored("TIMER_DLQ", 1)
    async with TimerClient.connect(broker.url) as client:
        letter = await client.dead_letters.get("acme", 1)
        assert letter is not None
        with pytest.raises(CommandError, match="INVALID_JSON"):
            await client.dead_letters.resubmit(letter)
        with pytest.raises(ValueError, match="no command can have"):
            await client.dead_letters.resubmit(letter.model_copy(update={"tenant": "~unreadable"}))
        (newest,) = await client.dead_letters.list(limit=1)
        assert (newest.sequence, newest.body) == (2, None)


async def test_without_the_stream(broker: NatsServer, cli: Cli) -> None:
    """Without the stream, or without the right to read it, the error says which login is needed."""
    done = await cli.run("dead-letters", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("timer-service: the broker has no stream TIMER_DLQ for this login")
