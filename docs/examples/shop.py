"""A shop: an order that is not paid in time is cancelled, and there is a report on weekdays (docs/receive.md).

    python docs/examples/shop.py

It takes two orders, and one of them is paid. Ctrl-C ends it. `timer-service schedules trigger shop report` fires the
schedule at once.
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta

from timer_service.client import DueTimeReached, ScheduleFired, TimerApp, TimerClient

URL = sys.argv[1] if len(sys.argv) > 1 else None  # None: as the commands of `timer-service` find it


@dataclass
class Order:
    """An order of the shop."""

    id: str
    total: float


app = TimerApp(URL, tenant="shop", name="orders", from_start=True)  # also the events before its first start


@app.on_due("unpaid")
async def cancel_unpaid(event: DueTimeReached[Order]) -> None:
    """Cancel an order. The data of the event are an `Order`, because the annotation says so."""
    print(f"cancelled {event.data.id}: {event.data.total:.2f} were not paid in time", flush=True)


@app.on_slot("report")
async def report(event: ScheduleFired) -> None:
    """Print the report of a slot."""
    print(f"report of {event.slot_at:%Y-%m-%d}", flush=True)


async def take_order(client: TimerClient, order: Order) -> None:
    """Schedule the timer of an order."""
    await client.timers.schedule("shop", order.id, due_in=timedelta(seconds=2), topic="unpaid", data=order)


async def pay(client: TimerClient, order_id: str) -> None:
    """Drop the timer of an order. Another outcome than `cancelled` means that the order was cancelled before."""
    outcome = await client.timers.cancel("shop", order_id)
    print(f"paid {order_id}" if outcome.name == "cancelled" else f"too late for {order_id}", flush=True)


async def main() -> None:
    """Put the schedule, take two orders, and let one of them be paid."""
    async with TimerClient.connect(URL) as client:
        await client.schedules.put("shop", "report", cron="0 9 * * MON-FRI", zone="Europe/Berlin")
        await take_order(client, Order("order-7", 12.5))
        await take_order(client, Order("order-8", 30))
        await pay(client, "order-8")


if __name__ == "__main__":
    asyncio.run(main())
    app.run()
