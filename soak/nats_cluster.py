"""A JetStream cluster of three nats-servers on this machine. A test can find leaders, and kill and restart nodes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StreamConfig

from tests.harness.load_user import AWAY
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, unused_port

_NODES = 3
_DAY_SECONDS = 86_400
_STREAMS: Mapping[str, str] = {
    "TIMER_CMD": "timer.cmd.v1.*.*",
    "TIMER_EVT": "timer.evt.v1.*.>",
    "TIMER_DLQ": "timer.dlq.v1.*.*",
}
"""The subjects of each stream of the service."""


class NatsCluster:
    """The nodes. Use it as a context manager; it is ready when it has created the streams with three replicas."""

    def __init__(self, folder: Path) -> None:
        routes = [unused_port() for _ in range(_NODES)]
        urls = json.dumps([f"nats://127.0.0.1:{port}" for port in routes])
        self.nodes = {
            f"node-{number}": NatsServer(
                folder / f"node-{number}",
                f'server_name: node-{number}\ncluster {{ name: tests, listen: "127.0.0.1:{port}", routes: {urls} }}',
            )
            for number, port in enumerate(routes)
        }
        self._stack = AsyncExitStack()
        self._operator: Client

    @property
    def urls(self) -> Sequence[str]:
        """The URL of each node."""
        return [node.url for node in self.nodes.values()]

    async def __aenter__(self) -> Self:
        try:
            for node in self.nodes.values():
                self._stack.push_async_exit(node)
            await asyncio.gather(*(node.start() for node in self.nodes.values()))
            options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "error_cb": _ignore}
            self._operator = await nats.connect(list(self.urls), connect_timeout=1, **options)
            self._stack.push_async_callback(self._operator.close)
            for name, subject in _STREAMS.items():
                await self._create(name, subject)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def leader(self, stream: str, consumer: str | None = None) -> str:
        """Wait until a stream, or a consumer of it, has a leader. Return the name of its node."""
        subject = f"CONSUMER.INFO.{stream}.{consumer}" if consumer else f"STREAM.INFO.{stream}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self._request(subject)
                if leader := answer.get("cluster", {}).get("leader"):
                    return str(leader)
                await asyncio.sleep(0.05)

    async def step_down(self, stream: str, consumer: str | None = None) -> None:
        """Make the leader of a stream, or of a consumer of it, give up its role."""
        target = f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}" if consumer else f"STREAM.LEADER.STEPDOWN.{stream}"
        assert (await self._request(target)).get("success")

    async def until_current(self, stream: str) -> None:
        """Wait until every replica of a stream is online and has all messages."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                cluster = (await self._request(f"STREAM.INFO.{stream}")).get("cluster", {})
                replicas = cluster.get("replicas", [])
                current = [each for each in replicas if each.get("current") and not each.get("offline")]
                if cluster.get("leader") and len(current) == _NODES - 1:
                    return
                await asyncio.sleep(0.05)

    async def _create(self, name: str, subject: str) -> None:
        config = StreamConfig(
            name=name,
            subjects=[subject],
            num_replicas=_NODES,
            discard=DiscardPolicy.NEW,
            max_age=7 * _DAY_SECONDS,
            duplicate_window=120,
            allow_atomic=True,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:  # the cluster refuses streams until it has a leader that knows enough nodes
                try:
                    await self._operator.jetstream(timeout=2).add_stream(config)
                except AWAY:
                    await asyncio.sleep(0.1)
                else:
                    return

    async def _request(self, subject: str) -> Mapping[str, Any]:
        try:
            reply = await self._operator.request(f"$JS.API.{subject}", timeout=1)
        except AWAY:
            return {}
        answer: Mapping[str, Any] = json.loads(reply.data)
        return answer


async def _ignore(_: Exception) -> None:
    """Ignore connection errors, because the tests kill nodes."""
