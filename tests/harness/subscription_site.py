"""A subscription of the NATS adapter, and a scripted server that plays JetStream for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.harness.history import MemoryHistory
from tests.harness.jetstream import ScriptedJetStream
from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.intake_client import IntakeClient
from timer_service.adapters.nats.membership import Membership
from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.nats.subscription import NatsSubscription
from timer_service.core.values.delivery import Delivery

SUBJECT = b"timer.cmd.v1.acme.schedule-timer"
_PULL = "$JS.API.CONSUMER.MSG.NEXT.TIMER_CMD.timer-service"


class Site:
    """A peer that plays JetStream, and a subscription."""

    def __init__(self, peer: ScriptedPeer, client: IntakeClient) -> None:
        self.peer = peer
        self.client = client
        self.js = ScriptedJetStream()
        self.history = MemoryHistory()
        peer.answer = self.js.answer
        subjects = Subjects("timer")
        membership = Membership(
            client, subjects, DurableConsumer(client, subjects), self.history, messages=(), batch_bytes=10_000
        )
        self.subscription = NatsSubscription(client, membership)

    @property
    def pulls(self) -> list[tuple[str, dict[str, Any]]]:
        """The reply subjects and the bodies of the pulls so far."""
        return [(reply, json.loads(body)) for subject, reply, body in self.peer.published if subject == _PULL]

    @property
    def settlements(self) -> list[tuple[str, bytes]]:
        """The acknowledgements so far: the sequence, and the body."""
        sent = [(subject, body) for subject, _, body in self.peer.published if subject.startswith("$JS.ACK.")]
        return [(subject.split(".")[5], body) for subject, body in sent]

    async def until_pulls(self, count: int) -> None:
        """Wait until the subscription has sent so many requests for commands."""
        await self.peer.until(lambda: len(self.pulls) >= count)

    @property
    def inbox(self) -> str:
        """The pattern of the inbox of the pulls."""
        return self.pulls[-1][0].rpartition(".")[0] + ".*"

    async def status(self, line: str, *, pull: int | None = None) -> None:
        """Send a status message, for the newest pull by default."""
        to = self.pulls[-1][0] if pull is None else self.inbox.replace("*", str(pull))
        await self.peer.deliver(self.inbox, to.encode(), headers=f"NATS/1.0 {line}\r\n\r\n".encode())

    async def command(self, sequence: int, body: bytes = b"x", **fields: Any) -> None:
        """Deliver a command as the consumer does."""
        self.js.last_sequence = max(self.js.last_sequence, sequence)
        reply = fields.pop("reply", b"$JS.ACK.TIMER_CMD.timer-service.1.%d.%d.17.0" % (sequence, sequence))
        await self.peer.deliver(self.inbox, fields.pop("subject", SUBJECT), body, reply=reply, **fields)

    async def buffered_command(self, sequence: int) -> None:
        """Deliver a command, and wait until the subscription has it in its buffer."""
        await self.command(sequence)
        async with asyncio.timeout(10):
            while not self.subscription._stay.buffer:
                await asyncio.sleep(0)

    async def lose_connection(self) -> None:
        """Cut the connection. Return when the subscription has noticed."""
        self.peer.disconnect()
        async with asyncio.timeout(5):
            while self.subscription.health.usable:
                await asyncio.sleep(0)

    async def next_batch(self) -> list[Delivery]:
        """Wait for a batch."""
        async with asyncio.timeout(10):
            return list(await self.subscription.next_batch(10))

    async def take(self, *sequences: int) -> list[Delivery]:
        """Deliver commands and take them."""
        waiting = asyncio.create_task(self.next_batch())
        await self.until_pulls(1)
        for sequence in sequences:
            await self.command(sequence)
        found = await waiting
        while len(found) < len(sequences):
            found += await self.next_batch()
        return found


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    """Open a subscription."""

    async def lost() -> None:
        started.subscription.connection_lost()
        client.discard_unsent()

    async def restored() -> None:
        started.subscription.connection_restored()

    async def ignore(_error: Exception) -> None:
        pass

    async with scripted_peer() as peer:
        client = IntakeClient()
        wait: Any = 0.01
        started = Site(peer, client)
        await client.connect(
            peer.url,
            max_reconnect_attempts=-1,
            reconnect_time_wait=wait,
            error_cb=ignore,
            disconnected_cb=lost,
            reconnected_cb=restored,
        )
        await started.subscription.open(alone=False)
        yield started
        await client.close()
