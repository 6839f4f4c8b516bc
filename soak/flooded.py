"""A service behind the server that deploy/prepare.py makes, with a tenant that floods and one that is measured."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Self

from soak.neighbour import Neighbour
from tests.harness.fence import separate_tenants
from tests.harness.memory import MIB, peak_bytes
from tests.harness.prepared import Prepared
from tests.harness.processes import NatsServer, Service

_TENANTS = ("tenant-a", "tenant-b")
_LOOK_SECONDS = 0.25
HEADER = f"{'mistake':36} {'sent':>9} {'used':>5} {'command':>7} {'query':>7} {'timer':>7} {'MiB':>7}"


class Figures(NamedTuple):
    """How the other tenant was served beside a flood. Times are the longest, in milliseconds."""

    sent: int
    """How many messages the flood had."""
    used: int
    """How many commands and queries of the other tenant were served."""
    command_ms: float
    query_ms: float
    timer_ms: float
    peak_mib: float
    unready: str
    """What `/readyz` said while it was not ready, or nothing."""

    def row(self, name: str) -> str:
        """Return a line of the table."""
        times = " ".join(f"{each:7.0f}" for each in (self.command_ms, self.query_ms, self.timer_ms, self.peak_mib))
        return f"{name:36} {self.sent:9} {self.used:5} {times} {self.unready or 'ready'}"


class Flooded:
    """The server, the service and the passwords of the tenants."""

    def __init__(self, broker: NatsServer, service: Service, prepared: Prepared) -> None:
        self.broker = broker
        self.service = service
        self._prepared = prepared

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator[Self]:
        """Start the server and the service with the files that prepare.py makes."""
        prepared = await asyncio.to_thread(Prepared, folder / "prepared", *_TENANTS)
        login = {"TIMER_BROKER_USER": "timer-service"}
        login["TIMER_BROKER_PASSWORD_FILE"] = str(prepared.password_file("timer-service"))
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(prepared.broker(folder / "nats"))
            await separate_tenants(broker, prepared.password_file("operator"), *_TENANTS)
            service = await stack.enter_async_context(Service(folder / "service", broker.url, **login))
            yield cls(broker, service, prepared)

    async def flood(self, name: str, seconds: float, most: int = 10**9) -> Figures:
        """Make a mistake for some seconds, with at most so many messages, while the other tenant uses the service."""
        command = [sys.executable, "-m", "soak.flooder", str(self.broker.port), str(seconds), str(most), name]
        pipe = asyncio.subprocess.PIPE
        flooder = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            assert flooder.stdin is not None
            assert flooder.stdout is not None
            flooder.stdin.write(f"{self._prepared.password('tenant-a')}\n".encode())
            assert await flooder.stdout.readline() == b"begins\n"
            return await self._measure(asyncio.ensure_future(flooder.stdout.read()))
        finally:
            if flooder.returncode is None:
                flooder.kill()
            await flooder.wait()

    async def _measure(self, flood: "asyncio.Future[bytes]") -> Figures:
        unready: set[str] = set()
        async with Neighbour.using(self.broker.url, self._prepared.password("tenant-b"), token_hex(8)) as neighbour:
            while not flood.done():
                status, text = await self.service.page("/readyz")
                if status != 200:
                    unready.add(text)
                await asyncio.wait([flood], timeout=_LOOK_SECONDS)
        waits = neighbour.waits
        return Figures(
            sent=int(await flood),
            used=len(waits.commands) + len(waits.queries),
            command_ms=max(waits.commands),
            query_ms=max(waits.queries),
            timer_ms=max(waits.timers),
            peak_mib=peak_bytes(self.service.running.pid) / MIB,
            unready="; ".join(unready),
        )
