"""The alternative to the service: the message scheduler of nats-server, with the timers of `drain`."""

from nats.aio.client import Client
from nats.js.api import StreamConfig

from benchmarks.harness import Message, Publisher, Rig, ask, until_none
from benchmarks.processes import BenchmarkError, Fleet
from benchmarks.report import Result
from benchmarks.timers import due_together, instant, now, sleep_until, soon

_STREAM = "SCHEDULES"
_FIRED = "schedules.fired"


async def scheduler(rig: Rig, size: int) -> Result:
    """Schedule messages for one instant in the broker. Measure how fast it publishes them. No service runs."""
    due_at = soon(size)
    async with rig.broker("default") as client:
        await client.jetstream().add_stream(
            StreamConfig(_STREAM, subjects=["schedules.>"], allow_msg_schedules=True, duplicate_window=0)
        )
        publisher = Publisher(client)
        await publisher.open()
        schedule = {"Nats-Schedule": f"@at {instant(due_at)}", "Nats-Schedule-Target": _FIRED}
        for timer in due_together("bench", size, due_at):
            await publisher.send(Message(f"schedules.of.{timer.call}", timer.id, timer.body()), schedule)
        await publisher.flush()
    async with rig.broker() as client:

        async def missing() -> int:
            return 2 * size - await _last_sequence(client)

        if now() >= due_at:
            raise BenchmarkError(f"this machine did not store {size} timers before they were due")
        await sleep_until(due_at)
        seconds = await until_none(Fleet([]), missing) - due_at / 1000
        left = await missing()
    figures = {"timers": size, "seconds from the instant to the last event": seconds, "timers/s": size / seconds}
    return Result("scheduler", figures, [f"{left} timers did not fire"] if left else [])


async def _last_sequence(client: Client) -> int:
    """Return how many messages the stream has ever had. Each schedule and each published message counts as one."""
    return int((await ask(client, f"STREAM.INFO.{_STREAM}"))["state"]["last_seq"])
