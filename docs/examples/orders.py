"""An order as a workflow: charge the card, wait a day, wait for an approval, and refund the charge without it.

    timer-service worker acme orders:order                              # in the folder docs/examples
    timer-service workflows start acme order-1 order --input '{"id": 1}'
    timer-service workflows send acme order-1 approval --data true

`python docs/examples/orders.py [BROKER_URL]` does all of it in one process, with a pause of a second.
"""

import asyncio
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

from timer_service.client import TimerClient
from timer_service.worker import Context, Retry, Worker, workflow


async def pay(ctx: Context, order: int) -> str:
    """Charge the card. A payment service that gets the same key again does not charge twice."""
    print(f"charge order {order}, key {ctx.key}")
    return f"charge-{order}"


async def refund(charge: str) -> None:
    """Give the money back."""
    print(f"refund {charge}")


@workflow("order", retry=Retry(max_attempts=5))
async def order(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    """Handle an order: its `id`, and the `pause` before the approval, in seconds (default: a day)."""
    charge = await ctx.step("charge", pay, ctx, order["id"])
    await ctx.sleep(timedelta(seconds=order.get("pause", 86_400)))
    try:
        approved = await ctx.wait_for("approval", timeout=timedelta(days=3))
    except TimeoutError:
        approved = False
    if not approved:
        await ctx.step("refund", refund, charge)
    return {"charge": charge, "approved": approved}


async def main(url: str = "nats://localhost:4222") -> None:
    """Run a worker, start an order, approve it and print its result."""
    worker = Worker(url, tenant="acme", workflows=[order], slots=100)
    working = asyncio.create_task(worker.run())
    async with TimerClient.connect(url) as client:
        name = f"order-{uuid4()}"
        await client.workflows.start("acme", name, "order", {"id": 1, "pause": 1})
        await client.workflows.send("acme", name, "approval", data=True)
        print(await client.workflows.result("acme", name))
    worker.stop()
    await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
