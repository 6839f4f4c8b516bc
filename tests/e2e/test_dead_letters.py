"""Dead letters, as an operator reads and resubmits them."""

import json

import pytest
import typer

from tests.e2e.conftest import User
from tests.harness.cli import Cli
from tests.harness.processes import NatsServer, Service, body
from timer_service.cli import dead_letters
from timer_service.client import DeadLetter, Outcome, TimerClient

LETTERS = "timer.dlq.v1.acme.schedule-timer"
SUBJECT = "timer.cmd.v1.{}.schedule-timer"
VALID = {"serviceCallId": "call-1", "dueAt": "2100-01-01T09:30:00Z"}


@pytest.fixture
def stored() -> dict[str, str]:
    """Return the settings of SQLite. Dead letters do not depend on the store."""
    return {}


async def test_list_newest_first(user: User, service: Service, cli: Cli) -> None:
    """The newest dead letters of a tenant come first, in pages, with code and reason, and without those of others."""
    for tenant in (["acme"] * 3 + ["globex"]) * 2:
        await user.js.publish(SUBJECT.format(tenant), body("ScheduleTimer", tenant, {}))
    await user.until_stored("TIMER_DLQ", 8)
    done = await cli.run("dead-letters", "list", "acme", "--limit", "4", "--json")
    assert [letter["sequence"] for letter in json.loads(done.stdout)] == [7, 6, 5, 3]
    cursor = done.stderr.partition("--cursor ")[2].split()[0]
    rest = await cli.json("dead-letters", "list", "acme", "--limit", "4", "--cursor", cursor)
    assert [letter["sequence"] for letter in rest] == [2, 1]
    everything = await cli.json("dead-letters", "list", "acme", "--all")
    assert [(each["sequence"], each["code"]) for each in everything] == [
        (number, "INVALID_PAYLOAD") for number in (7, 6, 5, 3, 2, 1)
    ]
    _, line = await cli.lines("dead-letters", "list", "--limit", "1", "--cursor", "2")
    assert (line.split()[:2], "acme/schedule-timer" in line) == (["1", "INVALID_PAYLOAD"], True)


async def test_list_of_several_pages(user: User, service: Service, cli: Cli) -> None:
    """All dead letters are listed, also if they are more than a page."""
    await user.send([(LETTERS, b"")] * 1_100)
    letters = await cli.json("dead-letters", "list", "acme", "--all")
    assert [letter["sequence"] for letter in letters] == list(range(1_100, 0, -1))


async def test_show(user: User, service: Service, cli: Cli) -> None:
    """A dead letter is shown with its reason, headers and command. A tenant that is given must be its own."""
    command = body("ScheduleTimer", "acme", {**VALID, "data": "?"}).replace(b"?", b"\xff")
    await user.js.publish(SUBJECT.format("acme"), command)
    await user.until_stored("TIMER_DLQ", 1)
    shown = await cli.lines("dead-letters", "show", "acme", "1")
    assert (shown[0], "\\xff" in shown[-1]) == ("acme/1", True)  # a byte that is not UTF-8 is not replaced
    assert "  Timer-Source-Subject: timer.cmd.v1.acme.schedule-timer" in shown
    letter = await cli.json("dead-letters", "show", "acme", "1")
    assert (letter["sequence"], letter["sourceSequence"], letter["size"]) == (1, 1, len(command))
    assert await cli.json("dead-letters", "show", "1") == letter
    done = await cli.run("dead-letters", "show", "2")
    assert (done.returncode, done.stderr) == (1, "not found: 2\n")
    for words in (["acme"], []):
        done = await cli.run("dead-letters", "show", *words)
        assert (done.returncode, "give the SEQUENCE of a dead letter" in done.stderr) == (2, True)
    for tenant, number in (("globex", "1"), ("acme", "2")):
        done = await cli.run("dead-letters", "show", tenant, number)
        assert (done.returncode, done.stderr) == (1, f"not found: {tenant}/{number}\n")
    (ended,) = await cli.json("dead-letters", "resubmit", "acme", "1", code=1)
    assert ended["error"]["code"] == "INVALID_JSON"  # the same bytes were sent


async def test_resubmit(user: User, service: Service, cli: Cli) -> None:
    """A command that can be handled now is handled, also twice and with a known id. Others are rejected again."""
    await user.js.publish(SUBJECT.format("acme"), body("ScheduleTimer", "acme", {}))
    await user.until_stored("TIMER_DLQ", 1)
    command = body("ScheduleTimer", "acme", VALID, id="known")  # of an earlier version that rejected it
    await user.js.publish(SUBJECT.format("acme"), command, headers={"Nats-Msg-Id": "known"})
    await user.js.publish(LETTERS, command)
    await user.js.publish(LETTERS, b"", headers={"Timer-Body-Omitted": "true"})
    await user.js.publish("timer.dlq.v1.~unreadable.schedule-timer", command)
    await user.js.publish("timer.dlq.v1.acme.~unreadable", command)
    assert await cli.lines("dead-letters", "resubmit", "acme", "2", "2") == ["unchanged: acme/2", "unchanged: acme/2"]
    assert await cli.lines("dead-letters", "resubmit", "2", "2") == ["unchanged: 2", "unchanged: 2"]
    done = await cli.run("dead-letters", "resubmit", "acme", "2", "1", "3", "9")
    rejected, omitted, missing = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "unchanged: acme/2\n")
    assert rejected.startswith("INVALID_PAYLOAD: acme/1: ")
    assert omitted.startswith("INVALID_PAYLOAD: acme/3: dead letter 3 lacks the command: it was too large. It is messa")
    assert missing == "NOT_FOUND: acme/9: there is no such dead letter"
    assert [each["sequence"] for each in await cli.json("dead-letters", "list", "~unreadable")] == [4]
    for tenant, number in (("~unreadable", "4"), ("acme", "5")):
        done = await cli.run("dead-letters", "resubmit", tenant, number)
        assert f"dead letter {number} was sent to a subject that no command can have\n" in done.stderr


async def test_wrong_dead_letters(user: User, service: Service, broker: NatsServer) -> None:
    """A sequence that no dead letter can have finds none. A dead letter of a list cannot be resubmitted."""
    await user.js.publish(LETTERS, body("ScheduleTimer", "acme", VALID))
    async with TimerClient.connect(broker.url) as client:
        assert [await client.dead_letters.get("acme", number) for number in (0, 2**64)] == [None, None]
        (listed,) = await client.dead_letters.list("acme")
        with pytest.raises(ValueError, match="lacks the command"):
            await client.dead_letters.resubmit(listed)
    assert await user.js.consumers_info("TIMER_DLQ") == []  # a list leaves none


async def test_resubmit_without_an_answer(
    user: User, service: Service, broker: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """If one command gets no answer, the others are sent, and all outcomes are printed, so that none is sent twice."""
    for _ in range(3):
        await user.js.publish(LETTERS, body("ScheduleTimer", "acme", VALID))
    async with TimerClient.connect(broker.url) as client:
        real, sent = client.dead_letters.resubmit, 0

        async def resubmit(letter: DeadLetter) -> Outcome:
            nonlocal sent
            sent += 1
            return await real(letter, timeout_seconds=0 if sent == 2 else 10)

        assert [each.sequence for each in await client.dead_letters.list("acme", before=3)] == [2, 1]
        client.dead_letters.resubmit = resubmit  # type: ignore[method-assign, assignment]
        with pytest.raises(typer.Exit):
            await dead_letters.resubmit(client, "acme", [1, 2, 3])
    sent_ones, error = capsys.readouterr()
    assert error.startswith("NO_ANSWER: acme/2: no outcome within 0 s; the command may be handled later")
    assert sent_ones.splitlines() == ["scheduled: acme/1", "unchanged: acme/3"]


async def test_without_the_stream(cli: Cli) -> None:
    """Without the stream, or without the right to read it, the error says which login is needed."""
    done = await cli.run("dead-letters", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("timer-service: the broker has no stream TIMER_DLQ for this login")
