"""Workflows with one worker process: how many end in a second, how soon they start, how fast their steps follow."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.brokers import load
from benchmarks.harness import Message, Publisher, Rig, command, publish, unhandled, until_none
from benchmarks.processes import Fleet
from benchmarks.records import Result
from benchmarks.timers import count_faults, now, percentiles, sleep_until

_RATE = 100
_DUPLICATES_SECONDS = 1
_LOOK_SECONDS = 1


class Ended(NamedTuple):
    """The event of a workflow that has ended, and when it arrived, in epoch milliseconds."""

    type: str
    workflow: str
    result: Any
    arrived: int


async def workflows(rig: Rig, size: int) -> Result:
    """Start workflows with one step while there is no worker. Start a worker, and measure how fast they end."""
    names = [f"w-{number}" for number in range(size)]
    await load(rig, [_start(name, "one-step") for name in names])
    async with rig.broker() as client, rig.service() as service:
        ended = await _listen(client)
        await until_none(service, partial(unhandled, rig, client))
        used = service.cpu_seconds()
        async with rig.worker("one_step") as worker:
            await _until_ended(service, ended, size)
            worker.check()
            used, used_by_worker = service.cpu_seconds() - used, worker.cpu_seconds()
    seconds = (max(each.arrived for each in ended) - min(each.arrived for each in ended)) / 1000 if ended else 0
    figures = {
        "workflows with one step, one worker process": size,
        "seconds from the first WorkflowCompleted to the last": seconds,
        "workflows/s": (size - 1) / seconds if seconds else 0,
        "CPU seconds, all instances": used,
        "CPU seconds, worker, with its start": used_by_worker,
    }
    return Result(figures, _faults(ended, names))


async def starts(rig: Rig, seconds: int) -> Result:
    """Start workflows at a steady rate. Measure the time from sending StartWorkflow to the first step."""
    names = [f"w-{number}" for number in range(_RATE * seconds)]
    sent: dict[str, int] = {}
    async with rig.broker() as client, rig.service() as service, rig.worker("one_step") as worker:
        ended = await _listen(client)
        publisher = await _publisher_of_ready_worker(client, service, ended)
        begin = now()
        for number, name in enumerate(names):
            await sleep_until(begin + 1000 * number // _RATE)
            sent[name] = now()
            await publisher.send(_start(name, "one-step"))
        await publisher.flush()
        await _until_ended(service, ended, len(names))
        worker.check()
    late = [each.result - sent[each.workflow] for each in ended if each.type == "WorkflowCompleted"]
    figures = {
        "workflows": len(names),
        "workflows/s": _RATE,
        **percentiles("from StartWorkflow to its step", late, (0.5, 0.99, 1)),
    }
    return Result(figures, _faults(ended, names))


async def steps(rig: Rig, size: int) -> Result:
    """Run one workflow with many steps, one after the other. Measure the time from the first step to the last."""
    async with rig.broker() as client, rig.service() as service, rig.worker("one_step", "many_steps") as worker:
        ended = await _listen(client)
        publisher = await _publisher_of_ready_worker(client, service, ended)
        await publisher.send(_start("w", "many-steps", size))

        async def left() -> int:
            await asyncio.sleep(_LOOK_SECONDS)  # a look takes time that the steps need
            return 0 if ended else 1 + size - await _stored_effects(client, "w")

        await until_none(service, left)
        worker.check()
    (first, last) = ended[0].result if ended and ended[0].result else (0, 0)
    seconds = (last - first) / 1000
    figures = {
        "steps of one workflow": size,
        "seconds from the first step to the last": seconds,
        "steps/s": (size - 1) / seconds if seconds else 0,
    }
    return Result(figures, _faults(ended, ["w"]))


async def _stored_effects(client: Client, workflow: str) -> int:
    body = json.dumps({"workflowId": workflow, "limit": 1}).encode()
    reply = json.loads((await client.request("timer.qry.v1.bench.get-workflow", body, timeout=10)).data)
    return int(reply["workflow"]["effects"]) if "workflow" in reply else 0


def _start(name: str, workflow_type: str, data: Any = None) -> Message:
    return command("StartWorkflow", f"start-{name}", {"workflowId": name, "type": workflow_type, "input": data})


async def _listen(client: Client) -> list[Ended]:
    """Return a list to which each event is added when it arrives."""
    ended: list[Ended] = []

    async def arrive(message: Msg) -> None:
        event, at = json.loads(message.data), now()
        ended.append(Ended(event["type"], event["payload"]["workflowId"], event["payload"].get("result"), at))

    await client.subscribe("timer.evt.v1.bench.*", cb=arrive)
    return ended


async def _publisher_of_ready_worker(client: Client, service: Fleet, ended: list[Ended]) -> Publisher:
    """Return a publisher when the worker has executed a first workflow. Its event is forgotten."""
    publisher = await publish(client, [_start("warm-up", "one-step")])
    await _until_ended(service, ended, 1)
    ended.clear()
    return publisher


async def _until_ended(service: Fleet, ended: Sequence[Ended], count: int) -> None:
    """Wait for the events of workflows, and for duplicates."""

    async def missing() -> int:
        return max(count - len(ended), 0)

    await until_none(service, missing)
    await asyncio.sleep(_DUPLICATES_SECONDS)


def _faults(ended: Sequence[Ended], names: Sequence[str]) -> list[str]:
    return count_faults([("WorkflowCompleted", name) for name in names], (each[:2] for each in ended))
