"""A service behind the fence that deploy/prepare.py makes, with an attacking tenant and a tenant that is measured."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Self

import nats

from tests.harness.fence import Operator, separate_tenants
from tests.harness.memory import MIB, peak_bytes
from tests.harness.neighbour import Neighbour
from tests.harness.prepared import Prepared
from tests.harness.processes import NatsServer, Service
from tests.harness.watched_service import PAUSES

_TENANTS = ("tenant-a", "tenant-b")
_LOOK_SECONDS = 0.25


class Figures(NamedTuple):
    """What one attack did, and how the other tenant was served meanwhile. Times are the longest, in milliseconds."""

    sent: int
    mib: float
    errors: Mapping[str, int]
    seen: int
    """How often the attacker received a word that only the other tenant's ids and data have."""
    used: int
    """How many commands and queries of the other tenant were served."""
    refused: int
    command_ms: float
    stored_ms: float
    """Of a command, until the broker had stored it."""
    query_ms: float
    queries_ms: Sequence[float]
    """The time of each query."""
    timer_ms: float
    peak_mib: float
    unready: str
    """What `/readyz` said while it was not ready, or nothing."""
    blocks_ms: Sequence[float]
    """The blocks of the event loop, from 50 ms on."""
    ran: float
    """The share of the time in which the service's main thread ran."""
    kept_waiting: float
    """The share of the time in which it could have run, but the machine was busy with other threads."""

    def row(self, name: str) -> str:
        """Return a line of the table."""
        refused = f"{self.refused} refused" if self.refused else ""
        errors = " ".join(f"{error} {number}" for error, number in self.errors.items())
        times = (self.command_ms, self.stored_ms, self.query_ms, self.timer_ms, max(self.blocks_ms, default=0))
        columns = " ".join(f"{each:7.0f}" for each in (*times, self.peak_mib))
        notes = "; ".join(filter(None, [self.unready or "ready", refused, errors]))
        return (
            f"{name:40} {self.sent:9} {self.mib:6.0f} {self.used:5} {columns} {self.ran:5.0%} {self.kept_waiting:6.0%} "
            f"{notes}"
        )


HEADER = (
    f"{'attack':40} {'sent':>9} {'MiB':>6} {'used':>5} {'command':>7} {'stored':>7} {'query':>7} {'timer':>7} "
    f"{'blocked':>7} {'memory':>7} {'ran':>5} {'waited':>6}"
)
"""The heading of the table."""


class Attacked:
    """The server, the service and the passwords of the tenants."""

    def __init__(self, broker: NatsServer, service: Service, prepared: Prepared, pauses: Path) -> None:
        self.broker = broker
        self.service = service
        self._prepared = prepared
        self._pauses = pauses

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path, **settings: str) -> AsyncIterator[Self]:
        """Start the server and the service with the files that prepare.py makes."""
        prepared, pauses = await asyncio.to_thread(Prepared, folder / "prepared", *_TENANTS), folder / "pauses"
        login = {"TIMER_NATS_USER": "timer-service"}
        login["TIMER_NATS_PASSWORD_FILE"] = str(prepared.password_file("timer-service"))
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(prepared.broker(folder / "nats"))
            await separate_tenants(broker, prepared.password_file("operator"), *_TENANTS)
            service = Service(folder / "service", broker.url, **login, **{PAUSES: str(pauses)}, **settings)
            service.command = [sys.executable, "-m", "tests.harness.watched_service", "serve"]
            await stack.enter_async_context(service)
            await _create_consumers(broker, prepared.password("operator"))
            yield cls(broker, service, prepared, pauses)

    async def attack(self, kind: str, seconds: float, most: int = 10**9) -> Figures:
        """Attack for some seconds, with at most so many messages, while the other tenant uses the service."""
        marker = token_hex(8)
        attacker = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.harness.attacks.attacker",
                str(self.broker.port),
                str(seconds),
                str(most),
                kind,
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert attacker.stdin is not None
            assert attacker.stdout is not None
            attacker.stdin.write(f"{self._prepared.password('tenant-a')}\n{marker}\n".encode())
            assert await attacker.stdout.readline() == b"begins\n"
            done = asyncio.ensure_future(attacker.stdout.read())
            return await self._measure(done, marker)
        finally:
            if attacker.returncode is None:
                attacker.kill()
            await attacker.wait()

    async def _measure(self, attack: "asyncio.Future[bytes]", marker: str) -> Figures:
        unready: set[str] = set()
        began, scheduled = time.monotonic(), self._scheduled()
        already = self._read_pauses()
        async with Neighbour.using(self.broker.url, self._prepared.password("tenant-b"), marker) as neighbour:
            while not attack.done():
                status, text = await self.service.page("/readyz")
                if status != 200:
                    unready.add(text)
                await asyncio.wait([attack], timeout=_LOOK_SECONDS)
        did = json.loads(await attack)
        seconds = time.monotonic() - began
        ran, waited = (after - before for before, after in zip(scheduled, self._scheduled(), strict=True))
        waits = neighbour.waits
        return Figures(
            sent=did["sent"],
            mib=did["bytes"] / MIB,
            errors=did["errors"],
            seen=did["seen"],
            used=len(waits.commands) + len(waits.queries),
            refused=neighbour.refused,
            command_ms=max(waits.commands),
            stored_ms=max(waits.stored),
            query_ms=max(waits.queries),
            queries_ms=waits.queries,
            timer_ms=max(waits.timers),
            peak_mib=peak_bytes(self.service.running.pid) / MIB,
            unready="; ".join(unready),
            blocks_ms=self._read_pauses()[len(already) :],
            ran=ran / seconds,
            kept_waiting=waited / seconds,
        )

    def _scheduled(self) -> tuple[float, float]:
        """Return for how many seconds the main thread of the service has run, and has waited for a processor."""
        pid = self.service.running.pid
        ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        return int(ran) / 1e9, int(waited) / 1e9

    def _read_pauses(self) -> list[float]:
        return [float(line) for line in self._pauses.read_text().split()]


async def _create_consumers(broker: NatsServer, password: str) -> None:
    """Create the consumer of each tenant, as described in docs/security.md."""
    operator = Operator(await nats.connect(broker.url, user="operator", password=password), [])
    for tenant in _TENANTS:
        await operator.create_consumer(tenant)
    await operator.connection.close()
