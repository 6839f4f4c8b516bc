"""Workers of docs/examples/orders.py are killed at every step of an order. The order ends as without a kill."""

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

import pytest

from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import TIMER_SERVICE, Spawned, spawn
from timer_service.client import TimerClient

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "orders.py"
SHOP = """
import asyncio, os, orders

make_call = orders.call

async def call(service, order, key):
    result = await make_call(service, order, key)
    if service == os.environ.get("HANG_AFTER"):
        await asyncio.Event().wait()  # until the test kills this process: the call is made, but not reported
    return result

orders.call = call
order = orders.order
"""
CALL = re.compile(r"^(charge|ship|refund) order 1, key (\w{32})$", re.MULTILINE)
LOOK_SECONDS = 0.1


class OrderPath(NamedTuple):
    """A way through the order: its last step and its result."""

    last: str
    result: dict[str, Any]

    @property
    def approval(self) -> bool | None:
        """The data of the message `approval`; None: no message comes in time."""
        approved: bool | None = self.result["approved"]
        return approved

    @property
    def stages(self) -> tuple[str, ...]:
        """Its calls and waits, in order."""
        return ("charge", "sleep", "approval", self.last)


PATHS = {
    "approved": OrderPath("ship", {"charge": "charge-1", "approved": True, "parcel": "ship-1"}),
    "refused": OrderPath("refund", {"charge": "charge-1", "approved": False, "refund": "refund-1"}),
    "timed-out": OrderPath("refund", {"charge": "charge-1", "approved": None, "refund": "refund-1"}),
}


class Shop:
    """The workers of one order. Each order has a queue of its own, so that a kill hits no other order."""

    def __init__(self, folder: Path, broker: NatsServer, name: str) -> None:
        self.name = name
        self._folder = folder
        self._broker = broker
        self._output = folder / f"{name}.out"
        self._worker: Spawned | None = None

    def start(self, **environment: str) -> None:
        command = [TIMER_SERVICE, "worker", "acme", "shop:order", "--queue", self.name, "--lease", "10s"]
        errors = self._folder / f"{self.name}.err"
        wanted = {"TIMER_BROKER_URL": self._broker.url, **environment}
        self._worker = spawn(command, self._output, errors, environment=wanted, cwd=self._folder)

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.send_signal(SIGKILL)
            self._worker.wait(30)

    def calls(self) -> list[tuple[str, str]]:
        """Return the calls that the outside world has seen: the service and the key of each."""
        text = self._output.read_text("utf-8") if self._output.exists() else ""
        return [(call[1], call[2]) for call in CALL.finditer(text)]


@contextmanager
def open_shop(folder: Path, broker: NatsServer, name: str) -> Iterator[Shop]:
    shop = Shop(folder, broker, name)
    try:
        yield shop
    finally:
        shop.kill()


async def until_reached(shop: Shop, client: TimerClient, stage: str) -> None:
    """Wait until a call of the order is made, or a wait of it has begun."""
    while True:
        detail = await client.workflows.get("acme", shop.name)
        waits = [each.key for each in detail.effects if each.kind != "step"] if detail is not None else []
        if stage in waits or stage in [service for service, _ in shop.calls()]:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def handle_order(shop: Shop, client: TimerClient, path: OrderPath, kill: str) -> tuple[Any, dict[str, int]]:
    """Handle an order whose worker is killed at a stage. Return its result, and how often each call was made."""
    data = {"id": 1, "pause": 3, "patience": 8 if path.approval is None else 600}
    await client.workflows.start("acme", shop.name, "order", data, queue=shop.name)
    shop.start(HANG_AFTER=kill)
    for stage in path.stages:
        await until_reached(shop, client, stage)
        if stage == kill:
            await asyncio.to_thread(shop.kill)
            shop.start()
        if stage == "approval" and path.approval is not None:
            await client.workflows.send("acme", shop.name, "approval", path.approval)
    result = await client.workflows.result("acme", shop.name)
    calls = Counter(shop.calls())
    assert len(calls) == len({service for service, _ in calls}), f"a call was repeated with another key: {calls}"
    return result, {service: count for (service, _), count in calls.items()}


@pytest.mark.slow  # the order of a worker that was killed in a call waits for a lease of at least 10 s
@pytest.mark.timeout(300)
async def test_kills_at_every_step_of_an_order(tmp_path: Path, broker: NatsServer) -> None:
    """An order whose worker is killed ends like one without a kill, on each path and at each step.

    Each outside call is made once under its key, and twice only if the kill struck between the call and its report.
    """
    folder = tmp_path / "shop"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder)
    (folder / "shop.py").write_text(SHOP, "utf-8")

    async def handle(name: str, path: OrderPath, kill: str) -> tuple[Any, dict[str, int]]:
        with open_shop(folder, broker, f"{name}-{kill}") as shop:
            return await handle_order(shop, client, path, kill)

    cases = [(name, path, kill) for name, path in PATHS.items() for kill in ("nowhere", *path.stages)]
    async with Service(tmp_path / "service", broker.url), TimerClient.connect(broker.url) as client:
        async with asyncio.timeout(280):
            ended = await asyncio.gather(*(handle(*each) for each in cases))
    found = {(name, kill): each for (name, _, kill), each in zip(cases, ended, strict=True)}
    assert found == {
        (name, kill): (path.result, {"charge": 1 + (kill == "charge"), path.last: 1 + (kill == path.last)})
        for name, path, kill in cases
    }
