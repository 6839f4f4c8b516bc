"""The driver of the client and of workers against a scripted peer: no error of the server closes the connection."""

import asyncio
from typing import Any

import pytest

from tests.harness.nats_peer import scripted_peer
from timer_service.client.connection import open_connection
from timer_service.core.message import Kind
from timer_service.nats_client import LastingClient

ANSWER: dict[str, Any] = {"tasks": []}


@pytest.mark.parametrize("reason", ["User Authentication Expired", "Authorization Violation", "Stale Connection"])
async def test_a_worker_connects_again_after_an_error(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends the connection of a login that has expired. The client connects again, and its requests work."""
    connect: Any = LastingClient.connect

    async def connect_soon(*args: Any, **options: Any) -> None:
        await connect(*args, **{**options, "reconnect_time_wait": 0.01})

    monkeypatch.setattr(LastingClient, "connect", connect_soon)
    reconnected = asyncio.Event()

    async def note() -> None:
        reconnected.set()

    async with scripted_peer() as peer:
        peer.answer = lambda _subject, _body: ANSWER
        async with open_connection(peer.url, "worker", "timer", {"reconnected_cb": note}) as opened:
            await peer.send(b"-ERR '%b'\r\n" % reason.encode())
            async with asyncio.timeout(10):
                await reconnected.wait()
            assert await opened.request(Kind.REQUEST, "acme", "poll-tasks", b"{}", 5) == ANSWER
