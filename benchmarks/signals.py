"""The time from a transition to the event of the signal that it fires."""

import asyncio
import json
from functools import partial

from nats.aio.msg import Msg

from benchmarks.harness import Message, Rig, command, publish, unhandled, until_none
from benchmarks.records import Result
from benchmarks.timers import count_faults, now, percentiles, sleep_until

_RATE = 100
_DUPLICATES_SECONDS = 1


def _create(name: str) -> Message:
    """Return the command for a signal that fires when its work item is blocked. Each signal has its own item."""
    trigger = {"kind": "work_item.status.transition", "to": ["blocked"]}
    payload = {"signalId": name, "workItemId": f"item of {name}", "triggerKind": "event", "triggerSpec": trigger}
    return command("CreateWorkSignal", f"create-{name}", payload)


def _block(name: str) -> Message:
    return command("TransitionWorkItem", f"block-{name}", {"workItemId": f"item of {name}", "to": "blocked"})


async def signals(rig: Rig, seconds: int) -> Result:
    """Publish transitions at a steady rate. Each fires a signal. Measure how late the event arrives at a subscriber."""
    arrived: list[tuple[str, int]] = []
    names = [f"signal-{index}" for index in range(_RATE * seconds)]
    sent: dict[str, int] = {}

    async def arrive(message: Msg) -> None:
        arrived.append((json.loads(message.data)["payload"]["signalId"], now()))

    async def missing() -> int:
        return len(names) - len(arrived)

    async with rig.broker() as client, rig.service() as service:
        publisher = await publish(client, map(_create, names))
        await until_none(service, partial(unhandled, rig, client))
        await client.subscribe("timer.evt.v1.*.work-signal-fired", cb=arrive)
        start = now()
        for index, name in enumerate(names):
            await sleep_until(start + 1000 * index // _RATE)
            sent[name] = now()
            await publisher.send(_block(name))
        await publisher.flush()
        await until_none(service, missing)
        await asyncio.sleep(_DUPLICATES_SECONDS)
    late = [at - sent[name] for name, at in arrived]
    figures = {
        "transitions": len(names),
        "transitions/s, each fires one signal": _RATE,
        **percentiles("from transition to event", late, (0.5, 0.99, 1)),
    }
    return Result(figures, count_faults(names, (name for name, _ in arrived)))
