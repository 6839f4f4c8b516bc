"""A real nats-server stores the dead letters of hostile commands."""

from collections.abc import AsyncIterator

import pytest

from tests.harness.brokers import HARNESSES, NatsHarness
from tests.harness.builders import command_address, raw_command
from tests.harness.nats_client import read_stream
from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports.broker import PublishStatus
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import RawCommand


@pytest.fixture
async def nats_harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


def hostile(limit: int) -> list[RawCommand]:
    """Return commands with hostile headers, subjects and sizes."""
    many = {f"header-{number}": "x" * 20 for number in range(5000)}
    headers: list[dict[str, str]] = [
        {"a/b": "1"},
        {"a b": "1"},
        {"ä": "1"},
        {"": "1"},
        {"a:b": "1", "a\r\nb": "2"},
        {"empty": "", "blank": "  "},
        {"tab": "a\tb", "control": "\x00\x01\x1b\x7f", "line": "a\r\nNats-Rollup: all\r\n"},
        {"ü": "ü" * 20_000},
        {"Status": "409", "Description": "Consumer Deleted"},
        {"Nats-TTL": "1s", "Nats-Rollup": "all", "Nats-Expected-Last-Sequence": "99", "nats-msg-id": "x"},
        {"note": "x" * 58_000},
        {"note": "x" * 65_000},
        {"n" * 65_000: "x"},
        many,
        {name.replace("-", " "): value for name, value in many.items()},
    ]
    addresses = [
        command_address("acme", "x" * 4000),
        command_address("t" * 4000, "y" * 4000),
        command_address("ä", "schedule timer"),
        command_address(r"\xff", r"\xff"),
        command_address("", ""),
        command_address("*", ">"),
        command_address("\r\nPUB x 0\r\n", "\x00"),
    ]
    commands = [raw_command(b"", headers=each) for each in headers]
    commands += [raw_command(b"body", address=each, headers={"a": "b"}) for each in addresses]
    commands += [raw_command(b"x" * (limit - missing), headers={"a/b": "c"}) for missing in range(0, 601, 40)]
    for number, each in enumerate(commands, 1):
        each.position = Position(1, number)
        each.source = f"timer.cmd.v1.{each.address.tenant}.{each.address.message}"
    return commands


async def test_each_dead_letter_is_stored(nats_harness: NatsHarness) -> None:
    """Each dead letter is stored once, under the sequence of its command, and the connection stays open."""
    commands = hostile(nats_harness.broker.max_message_bytes)
    rejected = [Rejected(each, Rejection(Code.INVALID_JSON, "no \r\n ü"), None) for each in commands]
    limit = nats_harness.broker.max_message_bytes
    results = await nats_harness.broker.publish([each.letter(limit) for each in rejected])
    assert [result.status for result in results] == [PublishStatus.PUBLISHED] * len(commands)
    stored = await read_stream(nats_harness.user.jetstream(), "TIMER_DLQ", "timer.dlq.v1.>")
    assert sorted(int((each.headers or {})["Timer-Source-Sequence"]) for each in stored) == list(
        range(1, len(commands) + 1)
    )
    assert nats_harness.broker.health.reason is None
