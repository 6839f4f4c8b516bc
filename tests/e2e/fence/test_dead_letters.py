"""Dead letters behind the fence of deploy/nats.conf: for the operator only."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.fence import LONG_AFTER, PASSWORDS, PATIENCE_SECONDS, Operator, Peer, command, separate_tenants
from tests.harness.processes import NatsServer
from timer_service.client import CommandError, NoAnswerError, TimerClient

SUBJECT = "timer.cmd.v1.tenant-a.schedule-timer"


@pytest.mark.parametrize("streams", ["shared", "separate"])
async def test_the_operator_reads_and_resubmits(
    streams: str, tmp_path: Path, broker: NatsServer, operator: Operator, a: Peer
) -> None:
    """The operator lists, reads and resubmits dead letters. A tenant is refused, and learns which login is needed."""
    if streams == "separate":
        password = tmp_path / "operator"
        password.write_text(PASSWORDS["OPERATOR_PASSWORD"])
        await separate_tenants(broker, password, "tenant-a", "tenant-b")
    await a.connection.jetstream().publish(SUBJECT, b"{")
    valid = command("tenant-a", "call-1", LONG_AFTER)
    await operator.connection.jetstream().publish("timer.dlq.v1.tenant-a.schedule-timer", valid)
    login = {"user": "operator", "password": PASSWORDS["OPERATOR_PASSWORD"]}
    async with TimerClient.connect(broker.url, **login) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(letters := await client.dead_letters.list("tenant-a")) < 2:
                await asyncio.sleep(0.02)
        found = [await client.dead_letters.get("tenant-a", each.sequence) for each in letters]
        bodies = {each.body: each for each in found if each is not None}
        assert (await client.dead_letters.resubmit(bodies[valid.decode()])).name == "scheduled"
        with pytest.raises(CommandError, match="INVALID_JSON"):
            await client.dead_letters.resubmit(bodies["{"])
    login = {"user": "tenant-a", "password": PASSWORDS["TENANT_A_PASSWORD"]}
    async with TimerClient.connect(broker.url, inbox_prefix="_INBOX.tenant-a", **login) as client:
        with pytest.raises(NoAnswerError, match="read: JetStream does not answer; it needs the login of the operator"):
            await client.dead_letters.list("tenant-a")
