"""How many events per second a program receives: `TimerApp` with an empty handler beside a loop over nats-py's `fetch`.

    python -m benchmarks.receive [EVENTS]

Both read the same stored events, acknowledge each, and have as many of them in progress at a time. They take turns.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import nats
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from benchmarks.processes import nats_server, running
from timer_service.adapters.embedded import free_port
from timer_service.client import DueTimeReached, TimerApp

_SUBJECT = "timer.evt.v1.acme.due-time-reached"
_AT = "2026-11-21T09:00:00.000Z"
_TURNS = 5
_WINDOW = 500

Receive = Callable[[str, str, int, int], Awaitable[None]]


async def with_nats(url: str, name: str, count: int, at_a_time: int) -> None:
    """Receive with nats-py."""
    async with await nats.connect(url) as connection:
        config = ConsumerConfig(max_ack_pending=10_000)
        durable = await connection.jetstream().pull_subscribe(_SUBJECT, durable=name, stream="TIMER_EVT", config=config)
        received = 0
        while received < count:
            for message in await durable.fetch(at_a_time):
                received += 1
                await message.ack()
        await connection.flush()


async def with_app(url: str, name: str, count: int, at_a_time: int) -> None:
    """Receive with an app."""
    app = TimerApp(url, tenant="acme", name=name, concurrency=at_a_time, from_start=True)
    received = 0

    @app.on_due()
    async def handle(_: DueTimeReached) -> None:
        nonlocal received
        received += 1
        if received == count:
            app.stop()

    await app.serve()


async def main(count: int) -> None:
    """Print the rates of both, and the ratio of their medians."""
    with TemporaryDirectory() as folder:
        port = free_port(0)
        config = Path(folder) / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/js" }}\n', "utf-8")
        url = f"nats://127.0.0.1:{port}"
        command = [nats_server(), "-c", str(config)]
        async with (
            running("nats-server", command, Path(folder), {}),
            await nats.connect(url, reconnect_time_wait=0.1, error_cb=_ignore) as connection,
        ):
            await _publish(connection, count)
            for at_a_time in (10, 100):
                rates: dict[str, list[float]] = {"nats-py": [], "TimerApp": []}
                for turn in range(_TURNS):
                    for name, receive in {"nats-py": with_nats, "TimerApp": with_app}.items():
                        started = time.perf_counter()
                        await receive(url, f"{name}-{at_a_time}-{turn}", count, at_a_time)
                        rates[name].append(count / (time.perf_counter() - started))
                ratio = median(rates["TimerApp"]) / median(rates["nats-py"])
                shown = "; ".join(f"{name} {[round(each) for each in found]}" for name, found in rates.items())
                print(f"{at_a_time} at a time, events/s: {shown}; ratio of the medians {ratio:.2f}")


async def _ignore(_: Exception) -> None:
    """Say nothing: the server may not listen yet."""


async def _publish(connection: Client, count: int) -> None:
    js = connection.jetstream()
    await js.add_stream(name="TIMER_EVT", subjects=["timer.evt.v1.*.>"])
    for start in range(0, count, _WINDOW):
        numbers = range(start, min(start + _WINDOW, count))
        await asyncio.gather(*(js.publish(_SUBJECT, _event(number)) for number in numbers))


def _event(number: int) -> bytes:
    payload = {"tenantId": "acme", "serviceCallId": f"order-{number}", "dueAt": _AT, "reachedAt": _AT, "data": number}
    envelope = {
        "id": f"event-{number}",
        "type": "DueTimeReached",
        "tenantId": "acme",
        "timestampMs": 1,
        "causationId": "c",
    }
    return json.dumps({**envelope, "payload": payload}).encode()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
