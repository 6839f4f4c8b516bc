"""Programs of users with mistakes that a checker of types must find. test_typing.py runs mypy on this file.

A line with a mistake ends with the code of its error. Every other line is right.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from timer_service.client import DueTimeReached, TimerApp, TimerClient, WorkflowStart
from timer_service.worker import Context, workflow
from timer_service.worker.testing import SimulatedWorkflow


@dataclass(frozen=True)
class Order:
    """The input of a workflow."""

    id: UUID
    placed_at: datetime
    total: int


async def pay(order: UUID, amount: int, note: str = "") -> str:
    """Be an asynchronous step."""
    return f"{order} {amount} {note}"


def pack(order: UUID) -> list[int]:
    """Be a step in a thread."""
    return [order.int]


@workflow("order")
async def order(ctx: Context, order: Order) -> list[int]:
    """Be a workflow."""
    receipt = await ctx.step("pay", pay, order.id, order.total)
    print(receipt.upper())
    receipt.append("x")  # attr-defined
    await ctx.step("pay", pay, order.id, order.total, "note", timeout=timedelta(seconds=1))
    await ctx.step("pay", pay, "wrong", order.total)  # arg-type
    await ctx.step("pay", pay, order.id)  # arg-type
    await ctx.step("pack", pack, order.id, 5)  # arg-type
    approved = await ctx.wait_for("approval", bool)
    approved.upper()  # attr-defined
    anything = await ctx.wait_for("anything")
    anything.upper()
    if order.totals:  # attr-defined
        return ["wrong"]  # list-item
    return await ctx.step("pack", pack, order.id)


app = TimerApp(tenant="acme", name="orders")


@app.on_due("unpaid")
async def remind(event: DueTimeReached[Order]) -> None:
    """Be a handler of an event with data."""
    print(event.timer_id.upper(), event.due_at - event.reached_at, event.data.total + 1)
    print(event.timerId)  # attr-defined
    print(event.data.totals)  # attr-defined
    event.timer_id = "other"  # misc


@app.on_slot()  # type-var
async def wrong(event: DueTimeReached) -> None:
    """Be a handler of another event than the decorator's."""


async def main(client: TimerClient, placed: Order) -> None:
    """Use the client."""
    outcome = await client.workflows.start("acme", "order-1", order, placed)
    await client.workflows.start("acme", "order-1", order, 5)  # misc
    await client.workflows.start("acme", "order-1", "order", 5)
    print(outcome.name == "started", outcome.name == "startet")  # comparison-overlap
    result = await client.workflows.result("acme", "order-1", order)
    result.upper()  # attr-defined
    await client.schedules.put(
        "acme", "daily", every=timedelta(days=1), start=WorkflowStart(workflow_type=order, data=placed)
    )
    WorkflowStart(workflow_type=order, data=5)  # misc
    async for timer in client.timers.list("acme", state="Schedulled"):  # arg-type
        print(timer.state == "Failed", timer.state == "failed")  # comparison-overlap
    packed = await SimulatedWorkflow(order, placed).result()
    packed.upper()  # attr-defined
