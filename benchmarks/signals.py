"""The time from a transition to the event of the signal that it fires."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import Publisher, Rig, unhandled, until_none
from benchmarks.result import Result
from benchmarks.timers import now, percentiles, sleep_until

_RATE = 100
_DUPLICATES_SECONDS = 1


class Signal(NamedTuple):
    """A signal that fires when its work item is blocked. Each signal has its own work item."""

    name: str

    @property
    def subject(self) -> str:
        return "timer.cmd.v1.bench.create-work-signal"

    @property
    def id(self) -> str:
        return f"create-{self.name}"

    def body(self) -> bytes:
        payload = {
            "signalId": self.name,
            "workItemId": f"item of {self.name}",
            "triggerKind": "event",
            "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]},
        }
        return _body(self.id, "CreateWorkSignal", payload)


class Transition(NamedTuple):
    """The transition that fires a signal."""

    signal: Signal

    @property
    def subject(self) -> str:
        return "timer.cmd.v1.bench.transition-work-item"

    @property
    def id(self) -> str:
        return f"block-{self.signal.name}"

    def body(self) -> bytes:
        return _body(self.id, "TransitionWorkItem", {"workItemId": f"item of {self.signal.name}", "to": "blocked"})


def _body(command_id: str, message_type: str, payload: Mapping[str, Any]) -> bytes:
    fields = {"tenantId": "bench", **payload}
    return json.dumps({"id": command_id, "type": message_type, "tenantId": "bench", "payload": fields}).encode()


async def signals(rig: Rig, seconds: int) -> Result:
    """Publish transitions at a steady rate. Each fires a signal. Measure how late the event arrives at a subscriber."""
    arrived: list[tuple[str, int]] = []
    waiting = [Signal(f"signal-{index}") for index in range(_RATE * seconds)]

    async def arrive(message: Msg) -> None:
        arrived.append((json.loads(message.data)["payload"]["signalId"], now()))

    async def missing() -> int:
        return len(waiting) - len(arrived)

    async with rig.broker() as client, rig.service() as service:
        await _create(client, waiting)
        await until_none(service, partial(unhandled, rig, client))
        await client.subscribe("timer.evt.v1.*.work-signal-fired", cb=arrive)
        sent = await _block_steadily(client, waiting)
        await until_none(service, missing)
        await asyncio.sleep(_DUPLICATES_SECONDS)  # wait for duplicates
    late = [at - sent[name] for name, at in arrived]
    figures = {
        "transitions": len(waiting),
        "transitions/s, each fires one signal": _RATE,
        **percentiles("from transition to event", late, (0.5, 0.99, 1)),
    }
    times = Counter(name for name, _ in arrived)
    faults = {"missing": len(waiting) - len(times), "duplicate": times.total() - len(times)}
    return Result(figures, [f"{count} {fault} events" for fault, count in faults.items() if count])


async def _create(client: Client, waiting: Sequence[Signal]) -> None:
    publisher = Publisher(client)
    await publisher.open()
    for signal in waiting:
        await publisher.send(signal)
    await publisher.flush()


async def _block_steadily(client: Client, waiting: Sequence[Signal]) -> dict[str, int]:
    """Publish a transition for each signal at `_RATE`. Return the time of each transition by signal."""
    publisher = Publisher(client)
    await publisher.open()
    start = now()
    sent: dict[str, int] = {}
    for index, signal in enumerate(waiting):
        await sleep_until(start + 1000 * index // _RATE)
        sent[signal.name] = now()
        await publisher.send(Transition(signal))
    await publisher.flush()
    return sent
