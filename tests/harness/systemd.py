"""Plays systemd: receives what a service says about its state."""

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.harness.processes import PATIENCE_SECONDS


class Systemd:
    """Receives the messages of a service at an address."""

    def __init__(self, address: str) -> None:
        """An address that begins with a zero byte is in the abstract namespace of Linux."""
        self.environ = {"NOTIFY_SOCKET": address.replace("\0", "@", 1)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    async def next(self) -> str:
        """Return the next message."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode()

    def waiting(self) -> list[str]:
        """Return the messages that were sent and not read yet."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self._socket.recv(4096).decode())
        return found

    def expect_silence(self, seconds: float) -> None:
        """Assert that no message comes for some seconds. The event loop of the test hangs meanwhile."""
        self._socket.settimeout(seconds)
        with suppress(TimeoutError):
            raise AssertionError(self._socket.recv(4096).decode())
        self._socket.settimeout(0)
