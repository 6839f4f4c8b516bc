"""Puts schedules, and watches one fire until it ends. docs/schedules.md says more."""

import asyncio
from datetime import timedelta
from zoneinfo import ZoneInfo

from timer_service.client import CommandError, ScheduleEnded, TimerClient

BERLIN = "Europe/Berlin"


async def main() -> None:
    """Put, pause, resume and delete a schedule. Watch another one, and put a wrong one."""
    async with TimerClient.connect() as client:
        schedules = client.schedules
        for slot in await schedules.preview("acme", cron="0 9 * * MON-FRI", zone=BERLIN, count=3):
            print(slot.astimezone(ZoneInfo(BERLIN)))

        outcome = await schedules.put("acme", "report", cron="0 9 * * MON-FRI", zone=BERLIN, catch_up="last")
        print(outcome.name, outcome.schedule and outcome.schedule.status)  # created active
        print((await schedules.pause("acme", "report")).name)  # paused: no slot fires
        print((await schedules.resume("acme", "report")).name)  # resumed
        print((await schedules.delete("acme", "report")).name)  # deleted

        await schedules.delete("acme", "tick")
        await schedules.put("acme", "tick", every=timedelta(seconds=1), max_count=3, data={"any": "json"})
        async for event in schedules.watch("acme"):  # from now on
            print(event.type, event.raw["payload"])
            if isinstance(event, ScheduleEnded):
                break

        try:
            await schedules.put("acme", "report", cron="0 9 * * ?")
        except CommandError as error:
            print(error.code, error.errors)  # INVALID_CRON, the field, and what to write instead


if __name__ == "__main__":
    asyncio.run(main())
