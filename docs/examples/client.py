"""Calls each part of the Python client once, and prints the results. docs/client.md says more."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from timer_service.client import CommandError, DueTimeReached, NewTimer, TimerClient


async def show(client: TimerClient) -> None:
    """Print each event of a timer."""
    async for event in client.timers.watch("acme"):  # events from now on
        if isinstance(event, DueTimeReached):
            print("fired:", event.timer_id, event.data)


async def main() -> None:
    """Send commands and queries about each kind of thing."""
    async with TimerClient.connect() as client:
        watching = asyncio.create_task(show(client))
        soon = datetime.now(UTC) + timedelta(seconds=3)
        later = soon + timedelta(hours=1)

        # Each command waits for its outcome. The service replies after its commit.
        outcome = await client.timers.schedule("acme", "order-1/payment", soon, data={"order": 1})
        print(outcome.name, outcome.timer)
        outcome = await client.timers.schedule("acme", "order-1/payment", soon + timedelta(seconds=1))
        print(outcome.name)  # rescheduled
        await client.timers.schedule("acme", "order-1/timeout", due_in=timedelta(hours=2))

        # Many timers at once. An error of one timer does not affect the others.
        new = [NewTimer("acme", f"order-{number}/reminder", later, data=number) for number in range(2, 1000)]
        for each, ended in zip(new, await client.timers.schedule_many(new), strict=True):
            if isinstance(ended, Exception):
                print(each.timer_id, "was not scheduled:", ended)

        print((await client.timers.cancel("acme", "order-2/reminder")).name)  # cancelled
        print((await client.timers.cancel("acme", "order-0/reminder")).name)  # not_found

        found = await client.timers.get("acme", "order-3/reminder")  # None if it does not exist
        if found is not None:
            print(found.state, found.due_at.astimezone(), found.data)

        async for timer in client.timers.list("acme", state="Scheduled", due_before=later):
            print("due next:", timer.timer_id)
        async for timer in client.timers.list("acme", state="Failed"):
            print((await client.timers.retry(timer.tenant, timer.timer_id)).name)
        print(await client.timers.count("acme"))

        # Work signals: reminders on work items.
        await client.signals.create("acme", "call-kim", work_item_id="ticket-7", on=["blocked"], note="Call Kim.")
        print((await client.signals.transition("acme", "ticket-7", "blocked")).name)  # transitioned
        async for signal in client.signals.list("acme"):
            print("reminder:", signal.signal_id, signal.note)

        # Schedules: recurring timers. Here: at 9 on weekdays in Berlin, and after an outage only the newest slot.
        cron, zone = "0 9 * * MON-FRI", "Europe/Berlin"
        print(len(await client.schedules.preview("acme", cron=cron, zone=zone, count=3)), "slots")
        outcome = await client.schedules.put("acme", "standup", cron=cron, zone=zone, catch_up="last", data="team")
        print(outcome.name)  # created
        print((await client.schedules.pause("acme", "standup")).name)  # paused
        async for schedule in client.schedules.list("acme"):
            print("recurring:", schedule.schedule_id, schedule.status, schedule.cron)

        # Runs: graphs of jobs. A job becomes ready when the jobs it needs have succeeded.
        jobs: list[dict[str, Any]] = [{"name": "lint"}, {"name": "publish", "needs": ["lint"]}]
        print((await client.runs.start("acme", "deploy-1", jobs)).name)  # started
        print((await client.runs.report("acme", "deploy-1", "lint", "success")).name)  # recorded
        run = await client.runs.get("acme", "deploy-1")
        if run is not None:
            print("ready:", [job.name for job in run.jobs if job.ready_at])  # lint and publish

        # Workflows: durable functions, executed by workers (see docs/workflows.md).
        print((await client.workflows.start("acme", "order-5", "order", {"id": 5})).name)  # started
        print((await client.workflows.send("acme", "order-5", "approval", data=True)).name)  # sent
        print((await client.workflows.cancel("acme", "order-5")).name)  # cancelled

        try:
            await client.timers.schedule("acme", "order-1/report", later, data="x" * 100_000)
        except CommandError as error:
            print(error.code, error.errors)  # TOO_LARGE, and the field

        await asyncio.sleep(5)
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main())
