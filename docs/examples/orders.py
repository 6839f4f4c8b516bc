"""An order as a workflow: charge the card, wait for an approval, then ship the order, or refund the charge.

    PYTHONPATH=docs/examples timer-service worker acme orders:order
    timer-service workflows start acme order-1 order --input '{"id": 1, "pause": 1}'
    timer-service workflows send acme order-1 approval --data true

`python docs/examples/orders.py [BROKER_URL]` does all of it in one process, with a pause of a second. Without the
URL, run it in the folder of `timer-service dev`.
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from timer_service.client import TimerClient
from timer_service.worker import Context, Retry, Worker, workflow

DAY = 86_400


@dataclass(frozen=True)
class Order:
    """An order. Times are in seconds."""

    id: int
    pause: float = DAY
    """How long to wait before the approval."""
    patience: float = 3 * DAY
    """How long to wait for it."""


@dataclass(frozen=True)
class Handled:
    """What became of an order."""

    charge: str
    approved: bool | None
    parcel: str | None = None
    refund: str | None = None


async def call(service: str, order: int, key: str) -> str:
    """Call a service of the shop. Here it prints a line.

    A worker that dies after the call, and before its result is stored, makes it again with the same key. A service that
    remembers the keys does nothing twice.
    """
    print(f"{service} order {order}, key {key}", flush=True)
    return f"{service}-{order}"


async def pay(ctx: Context, order: int) -> str:
    """Charge the card."""
    return await call("charge", order, ctx.key)


async def ship(ctx: Context, order: int) -> str:
    """Send the parcel."""
    return await call("ship", order, ctx.key)


async def give_back(ctx: Context, order: int) -> str:
    """Refund the charge."""
    return await call("refund", order, ctx.key)


@workflow("order", retry=Retry(max_attempts=5))
async def order(ctx: Context, order: Order) -> Handled:
    """Handle an order."""
    charge = await ctx.step("charge", pay, ctx, order.id)
    await ctx.sleep(timedelta(seconds=order.pause))
    try:
        approved = await ctx.wait_for("approval", bool, timeout=timedelta(seconds=order.patience))
    except TimeoutError:
        approved = None
    if approved:
        return Handled(charge, approved, parcel=await ctx.step("ship", ship, ctx, order.id))
    return Handled(charge, approved, refund=await ctx.step("refund", give_back, ctx, order.id))


async def main(url: str | None = None) -> None:
    """Run a worker, start an order, approve it and print its result."""
    worker = Worker(url, tenant="acme", workflows=[order], slots=100)
    working = asyncio.create_task(worker.run())
    async with TimerClient.connect(url) as client:
        name = f"order-{uuid4()}"
        await client.workflows.start("acme", name, order, Order(id=1, pause=1))
        await client.workflows.send("acme", name, "approval", data=True)
        print(await client.workflows.result("acme", name, order))
    worker.stop()
    await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
