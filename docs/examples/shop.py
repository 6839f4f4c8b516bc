"""A shop: an order that is not paid in time is cancelled (docs/receive.md).

    python docs/examples/shop.py

It takes an order, schedules a timer for it, and cancels the order when the timer fires. Ctrl-C ends it.
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta

from timer_service.client import DueTimeReached, TimerApp, TimerClient

URL = sys.argv[1] if len(sys.argv) > 1 else None  # None: as the commands of `timer-service` find it


@dataclass
class Order:
    """An order of the shop."""

    id: str
    total: float


app = TimerApp(URL, tenant="shop", name="orders", from_start=True)


@app.on_due("unpaid")
async def cancel_unpaid(event: DueTimeReached[Order]) -> None:
    """Cancel an order. The data of the event are an `Order`, because the annotation says so."""
    print(f"cancelled {event.data.id}: {event.data.total:.2f} were not paid in time", flush=True)


async def take_order(order: Order) -> None:
    """Schedule the timer of an order."""
    async with TimerClient.connect(URL) as client:
        await client.timers.schedule("shop", order.id, due_in=timedelta(seconds=1), topic="unpaid", data=order)


if __name__ == "__main__":
    asyncio.run(take_order(Order("order-7", 12.5)))
    app.run()
