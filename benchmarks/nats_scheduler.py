"""The alternative to the service: the message scheduler of nats-server, with the timers of the same scenarios.

A schedule is a message with a header that says when, and on which subject, the broker publishes it. All schedules and
all published messages are in one stream. No service runs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig

from benchmarks.harness import Command, Message, Rig, TooLateError, ask, publish, read_events, until_none
from benchmarks.measure import Drained, measure_drain, measure_fair, measure_lag
from benchmarks.processes import Fleet
from benchmarks.records import Result
from benchmarks.sender import frame, send_frames
from benchmarks.timers import Timer, due_together, instant, now, sleep_until

_STREAM = "SCHEDULES"
_FIRED = "schedules.fired"
_EVENT_TYPE = "ScheduleTimer"
"""The type in the published message: its body is that of the command."""
_DAY_MS = 24 * 3_600_000
_DUPLICATES_SECONDS = 1


async def nats_accept(rig: Rig, size: int) -> Result:
    """Send schedules as fast as the broker takes them. Measure the time to the last acknowledgement."""
    frames = _frames(due_together("bench", size, now() + _DAY_MS))
    async with rig.broker() as client:
        await _add_stream(client)
        seconds = await send_frames(rig.port, frames)
        stored = await _last_sequence(client)
    figures = {
        "schedules": size,
        "seconds from the first schedule to the last acknowledgement": seconds,
        "schedules/s": size / seconds,
    }
    return Result(figures, [] if stored == size else [f"{stored} of {size} schedules were stored"])


async def nats_drain(rig: Rig, size: int) -> Result:
    """Schedule messages for one instant. Measure how fast the broker publishes them."""
    return await measure_drain(rig, size, _fire_together, _EVENT_TYPE)


async def nats_fair(rig: Rig, size: int) -> Result:
    """Schedule many messages and one message of another tenant for one instant. Measure how late the one is."""
    return await measure_fair(rig, size, _fire_together, _EVENT_TYPE)


async def nats_lag(rig: Rig, seconds: int, rate: int = 200) -> Result:
    """Schedule messages at a steady rate. Measure how late each one arrives at a consumer."""
    async with rig.broker() as client:
        await _add_stream(client)
        # A plain subscriber gets nothing: the broker writes these messages to the stream only.
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)

        async def listen(arrive: Callable[[bytes], None]) -> None:
            async def receive(message: Msg) -> None:
                arrive(message.data)

            await client.jetstream().subscribe(_FIRED, stream=_STREAM, config=config, cb=receive)

        sender = await publish(client, ())
        return await measure_lag(
            sender, Fleet([]), rate, seconds, listen=listen, command_of=_schedule, event_type=_EVENT_TYPE
        )


async def _fire_together(rig: Rig, timers: Sequence[Timer]) -> Drained:
    """Schedule messages for one instant, and wait until they are published."""
    frames = _frames(timers)
    async with rig.broker("default") as client:
        await _add_stream(client)
        await send_frames(rig.port, frames)
    due_at = timers[0].due_at
    async with rig.broker() as client:

        async def missing() -> int:
            return 2 * len(timers) - await _last_sequence(client)

        if now() >= due_at:
            raise TooLateError(f"this machine did not store {len(timers)} timers before they were due")
        await sleep_until(due_at)
        seconds = await until_none(Fleet([]), missing) - due_at / 1000
        await asyncio.sleep(_DUPLICATES_SECONDS)
        published = await _last_sequence(client) - len(timers)
        return Drained(await read_events(client, _STREAM, _FIRED, published), seconds)


def _schedule(timer: Timer) -> tuple[Command, Mapping[str, str]]:
    headers = {"Nats-Schedule": f"@at {instant(timer.due_at)}", "Nats-Schedule-Target": _FIRED}
    return Message(f"schedules.of.{timer.tenant}.{timer.call}", timer.id, timer.body()), headers


def _frames(timers: Sequence[Timer]) -> list[bytes]:
    frames = []
    for timer in timers:
        message, headers = _schedule(timer)
        frames.append(frame(message.subject, {"Nats-Msg-Id": message.id, **headers}, message.body()))
    return frames


async def _add_stream(client: Client) -> None:
    await client.jetstream().add_stream(
        StreamConfig(_STREAM, subjects=["schedules.>"], allow_msg_schedules=True, duplicate_window=0)
    )


async def _last_sequence(client: Client) -> int:
    """Return how many messages the stream has ever had. Each schedule and each published message counts as one."""
    return int((await ask(client, f"STREAM.INFO.{_STREAM}"))["state"]["last_seq"])
