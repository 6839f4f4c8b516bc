"""Workflows with one worker process: how many end in a second, how soon they start, how fast their steps follow."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import Message, Publisher, Rig, load, unhandled, until_none
from benchmarks.processes import BenchmarkError, Fleet
from benchmarks.result import Result
from benchmarks.timers import now, percentiles, sleep_until

_RATE = 100
_SLEEPERS = 10_000
_MS_PER_START = 3
"""How long a workflow takes until it sleeps, on a slow machine."""
_IDLE_SECONDS = 10
_DAY_MS = 86_400_000
_POLLS = 1000
_POLL_SECONDS = 10
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


async def sleeps(rig: Rig, seconds: int) -> Result:
    """Let many workflows sleep, and wake some at a steady rate. Measure how late their steps run."""
    names = [f"w-{number}" for number in range(_RATE * seconds)]
    others = [f"long-{number}" for number in range(_SLEEPERS - len(names))]
    tomorrow = now() + _DAY_MS
    async with rig.broker() as client, rig.service() as service, rig.worker("one_step", "sleeper") as worker:
        ended = await _listen(client)
        publisher = await _publisher_of_ready_worker(client, service, ended)
        begin = now() + _SLEEPERS * _MS_PER_START
        for number, name in enumerate(names):
            await publisher.send(_start(name, "sleeper", begin + 1000 * number // _RATE))
        for name in others:
            await publisher.send(_start(name, "sleeper", tomorrow))
        await publisher.send(_start("last", "sleeper", 0))  # the lane is in order: when it ends, all others sleep
        await publisher.flush()
        await _until_ended(service, ended, 1)
        if now() + 1000 * _IDLE_SECONDS > begin:
            raise BenchmarkError(f"{_SLEEPERS} workflows were not asleep before the first was due")
        share = await _share_of_core(service, _IDLE_SECONDS)
        await sleep_until(begin + 1000 * seconds)
        await _until_ended(service, ended, 1 + len(names))
        worker.check()
        due = {name: await _end_of_sleep(client, name) for name in names}
    woken = [each for each in ended if each.workflow != "last"]
    late = [each.result - due[each.workflow] for each in woken if each.type == "WorkflowCompleted"]
    figures = {
        "workflows asleep": _SLEEPERS,
        "share of a core while all sleep, all instances, %": share,
        "of them wake, workflows/s": _RATE,
        **percentiles("from the end of the sleep to the next step", late, (0.5, 0.99, 1)),
    }
    early = [f"{each} ms early" for each in late if each < 0]
    return Result(figures, _faults(woken, names) + early)


async def _end_of_sleep(client: Client, workflow: str) -> float:
    """Return when the sleep of a workflow ended, in epoch milliseconds."""
    body = json.dumps({"workflowId": workflow}).encode()
    reply = json.loads((await client.request("timer.qry.v1.bench.get-workflow", body, timeout=10)).data)
    (due_at,) = (each["dueAt"] for each in reply["effects"] if each["kind"] == "sleep")
    return 1000 * datetime.fromisoformat(due_at).timestamp()


async def polls(rig: Rig, seconds: int) -> Result:
    """Hold the polls of many workers without work. Measure the processor time that they cost the service."""
    replies: Counter[bytes] = Counter()
    async with rig.broker() as client, rig.service() as service:
        without = await _share_of_core(service, seconds)
        polling = [asyncio.create_task(_poll(client, number, replies)) for number in range(_POLLS)]
        await asyncio.sleep(_POLL_SECONDS)  # from now on, they are spread evenly
        before = replies.total()
        share = await _share_of_core(service, seconds)
        answered = replies.total() - before
        for each in polling:
            each.cancel()
        problems = [str(each.exception()) for each in polling if each.done() and not each.cancelled()]
    figures = {
        "workers without work, one poll each": _POLLS,
        "polls/s": answered / seconds,
        "share of a core without polls, all instances, %": without,
        "share of a core, all instances, %": share,
    }
    unexpected = [reply for reply in replies if reply != b'{"tasks":[]}']
    return Result(figures, problems + [f"{replies[each]} polls got {each!r}" for each in unexpected])


async def _poll(client: Client, number: int, replies: Counter[bytes]) -> None:
    """Poll again and again, as a worker does. The polls of all workers are spread evenly over the time of a poll."""
    await asyncio.sleep(_POLL_SECONDS * number / _POLLS)
    body = json.dumps({"workerId": f"worker-{number}", "types": ["one-step"], "slots": 100}).encode()
    while True:
        reply = await client.request("timer.wrk.v1.bench.poll-tasks", body, timeout=_POLL_SECONDS + 5)
        replies[reply.data] += 1


async def _share_of_core(service: Fleet, seconds: int) -> float:
    """Return the processor time of all instances during some seconds, in percent of a core."""
    used = service.cpu_seconds()
    await asyncio.sleep(seconds)
    return 100 * (service.cpu_seconds() - used) / seconds


async def _stored_effects(client: Client, workflow: str) -> int:
    body = json.dumps({"workflowId": workflow, "limit": 1}).encode()
    reply = json.loads((await client.request("timer.qry.v1.bench.get-workflow", body, timeout=10)).data)
    return int(reply["workflow"]["effects"]) if "workflow" in reply else 0


def _start(name: str, workflow_type: str, data: Any = None) -> Message:
    payload = {"workflowId": name, "type": workflow_type, "input": data}
    body = {"id": f"start-{name}", "type": "StartWorkflow", "tenantId": "bench", "payload": payload}
    return Message("timer.cmd.v1.bench.start-workflow", f"start-{name}", json.dumps(body).encode())


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
    publisher = Publisher(client)
    await publisher.open()
    await publisher.send(_start("warm-up", "one-step"))
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
    times = Counter(each.workflow for each in ended if each.type == "WorkflowCompleted")
    counts = {
        "missing": len(set(names) - times.keys()),
        "duplicate": times.total() - len(times),
        "unexpected": len(ended) - times.total(),
    }
    return [f"{count} {fault} events" for fault, count in counts.items() if count]
