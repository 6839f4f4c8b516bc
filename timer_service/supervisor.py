"""Tells systemd that the service is ready, alive or stopping. Each message is one datagram (`sd_notify`)."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

_READY_SECONDS = 0.1
_MESSAGES_PER_WATCHDOG = 3
"""So one late or lost message does not end the process."""


class Supervisor:
    """The process that has started this one, if it wants these messages. Otherwise nothing is sent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ`: the variables of systemd, NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        address = environ.get("NOTIFY_SOCKET", "")
        # systemd writes the zero byte of an abstract address as @.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        is_watched = environ.get("WATCHDOG_PID") in {None, str(os.getpid())}
        self._watchdog_seconds = int(environ.get("WATCHDOG_USEC", 0)) / 1_000_000 if is_watched else 0
        """How long the supervisor waits for a sign of life; 0 if it expects none."""

    async def report(self, *, ready: Callable[[], bool], alive: Callable[[], bool]) -> None:
        """Send READY=1 once the service is ready, and then WATCHDOG=1 again and again while it is alive.

        READY=1 is tried until it can be sent. If the event loop hangs, nothing is sent, so the supervisor starts the
        process again.
        """
        if not self._address:
            return
        while not (ready() and self._send("READY=1")):  # noqa: ASYNC110 - no event reports that the service is ready
            await asyncio.sleep(_READY_SECONDS)
        while self._watchdog_seconds:
            if alive():
                self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / _MESSAGES_PER_WATCHDOG)

    def stopping(self) -> None:
        """Send STOPPING=1. From then on, the supervisor expects no WATCHDOG=1."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> bool:
        """Send a message without waiting. Return whether it was sent: False without a supervisor that takes it now."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                sender.sendto(message.encode(), self._address)
        except OSError:
            return False
        return True


NO_SUPERVISOR = Supervisor({})
