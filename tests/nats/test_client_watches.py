"""The watches of a client against a scripted peer: those of the same subject share one subscription."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.client import watches, workflows
from timer_service.client.connection import Connection, open_connection
from timer_service.client.errors import NoAnswerError, WorkflowEndedError
from timer_service.client.events import DueTimeReached
from timer_service.client.workflows import Workflows
from timer_service.core.values.address import kebab

FIRED = "timer.evt.v1.acme.due-time-reached"
WATCHED = [FIRED, f"{FIRED}.*"]
ENDS = [f"timer.evt.v1.acme.workflow-{end}" for end in ("completed", "failed", "cancelled")]
WORKFLOW = {
    "tenantId": "acme",
    "type": "order",
    "queue": "default",
    "createdAt": "2027-01-01T00:00:00.000Z",
    **dict.fromkeys(("attempt", "retries", "effects", "messages"), 0),
}
WAITS_AT_EACH_COMMAND: Mapping[str, Any] = {"pending_size": 1}
"""With these options, the driver waits in each `subscribe` and `unsubscribe` until it has sent all it has."""


@asynccontextmanager
async def connected(options: Mapping[str, Any]) -> AsyncIterator[tuple[ScriptedPeer, Connection]]:
    """A peer, and a client that is connected to it."""
    async with scripted_peer() as peer, open_connection(peer.url, "user", "timer", options) as connection:
        yield peer, connection


def watched(peer: ScriptedPeer) -> list[str]:
    """Return the subject of each subscription to events, in order."""
    return sorted(each for each in peer.open.values() if ".evt." in each)


ENVELOPE = {"id": "event-1", "tenantId": "acme", "timestampMs": 1_795_000_000_000}
AT = "2026-11-21T09:00:00.000Z"


async def fire(peer: ScriptedPeer, number: int, data: str = "") -> None:
    """Publish the event of a timer."""
    payload = {"serviceCallId": data, "dueAt": AT, "reachedAt": AT, "data": number}
    body = {**ENVELOPE, "type": "DueTimeReached", "payload": payload}
    await peer.deliver(FIRED, FIRED.encode(), json.dumps(body).encode())


async def end(peer: ScriptedPeer, subject: str, workflow: str) -> None:
    """Publish the event of the end of a workflow."""
    ended = {"WorkflowCompleted": {}, "WorkflowFailed": {"code": "STEP_FAILED"}}
    (name,) = (name for name in ended if kebab(name) in subject)
    payload = {"workflowId": workflow, "type": "order", "startedAt": AT, "endedAt": AT, **ended[name]}
    await peer.deliver(subject, subject.encode(), json.dumps({**ENVELOPE, "type": name, "payload": payload}).encode())


async def next_number(events: AsyncIterator[DueTimeReached]) -> Any:
    async with asyncio.timeout(10):
        return (await anext(events)).data


async def collect_numbers(events: AsyncIterator[DueTimeReached], numbers: list[int]) -> None:
    async for event in events:
        number = event.data
        numbers.append(number)


async def until_begun(peer: ScriptedPeer, *begins: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Start to wait for events. Return when all have sent their two flushes."""
    pings = peer.pings + 2 * len(begins)
    tasks = [asyncio.ensure_future(each) for each in begins]
    await peer.until(lambda: peer.pings >= pings)
    return tasks


async def test_twenty_waiting_calls_use_three_subscriptions() -> None:
    """Calls that wait for ends of workflows of one tenant share three subscriptions. All see the end of theirs."""
    ended: set[str] = set()

    def answer(_: str, body: bytes) -> dict[str, Any]:
        workflow = json.loads(body)["workflowId"]
        status = "completed" if workflow in ended else "running"
        view = {**WORKFLOW, "workflowId": workflow, "status": status}
        return {"workflow": view, "hasWorkers": True, "result": workflow, "effects": []}

    async with connected({}) as (peer, connection):
        peer.answer = answer
        calls = [Workflows(connection).result("acme", f"order-{number}") for number in range(20)]
        tasks = await until_begun(peer, *calls)
        assert watched(peer) == sorted(ENDS)
        for number in range(20):
            ended.add(f"order-{number}")
            await end(peer, ENDS[0], f"order-{number}")
            async with asyncio.timeout(5):
                assert await tasks[number] == f"order-{number}"
        await peer.until(lambda: not watched(peer))
        assert peer.most == 4  # one is the inbox of the answers


async def test_effects_on_several_pages() -> None:
    """A workflow has the effects of all pages, in order."""
    page = {"workflow": {**WORKFLOW, "workflowId": "order-1", "status": "parked"}, "hasWorkers": True}
    first, last = ([{"key": key, "kind": "step", "status": "completed"}] for key in ("a/1", "b/1"))
    answers = iter([{**page, "cursor": "2", "effects": first}, {**page, "effects": last}])
    async with connected({}) as (peer, connection):
        peer.answer = lambda _subject, _body: next(answers)
        detail = await Workflows(connection).get("acme", "order-1")
        assert detail is not None
        assert [effect.key for effect in detail.effects] == ["a/1", "b/1"]


async def test_an_end_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for a result looks again from time to time, because the event of the end can be lost."""
    monkeypatch.setattr(workflows, "LOOK_AGAIN_SECONDS", 0.01)
    statuses = iter(["running", "running", "cancelled"])

    def answer(_subject: str, _body: bytes) -> dict[str, Any]:
        return {"workflow": {**WORKFLOW, "workflowId": "order-1", "status": next(statuses)}, "hasWorkers": True}

    async with connected({}) as (peer, connection):
        peer.answer = answer
        with pytest.raises(WorkflowEndedError, match="is cancelled"):
            await Workflows(connection).result("acme", "order-1", timeout_seconds=10)


async def test_a_failed_result_leaves_nothing() -> None:
    """An error that a program keeps does not keep the watch of the call that raised it."""
    view = {**WORKFLOW, "workflowId": "order-1", "status": "failed"}
    answer = {"workflow": view, "hasWorkers": True, "failure": {"type": "no", "message": "no"}, "effects": []}
    async with connected({}) as (peer, connection):
        (waiting,) = await until_begun(peer, Workflows(connection).result("acme", "order-1"))
        await end(peer, ENDS[1], "order-1")  # while the call asks for the workflow
        await peer.until(lambda: bool(peer.published))
        await peer.reply(json.dumps(answer).encode())
        await asyncio.wait([waiting], timeout=10)
        kept = waiting.exception()
        await peer.until(lambda: not watched(peer))
        assert isinstance(kept, WorkflowEndedError)


async def test_a_slow_watch_ends_alone() -> None:
    """A watch that is not read has at most 128 MiB of events, and then raises. Another one of the subject goes on."""
    async with connected({}) as (peer, connection):
        slow, fast = connection.events("acme", "due-time-reached"), connection.events("acme", "due-time-reached")
        begun = await until_begun(peer, next_number(slow), next_number(fast))
        data = "x" * 1024 * 1024
        for number in range(140):
            await fire(peer, number, data)
            assert await (begun[1] if number == 0 else next_number(fast)) == number
        numbers = [await begun[0]]
        with pytest.raises(NoAnswerError, match="read too slowly, so this watch has ended; events may be missing"):
            await collect_numbers(slow, numbers)
        assert numbers == list(range(len(numbers)))
        assert 120 < len(numbers) < 130
        assert watched(peer) == WATCHED
        begun = await until_begun(peer, next_number(connection.events("acme", "due-time-reached")))
        await fire(peer, 140)
        assert await asyncio.gather(next_number(fast), *begun) == [140, 140]


async def test_a_watch_that_is_read_in_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that were read do not count any more, however many there were."""
    monkeypatch.setattr(watches, "READ_AHEAD_BYTES", 1000)
    watch = watches.Watch("acme", ["due-time-reached"])
    for _ in range(100):
        watch.add(b"event")
        assert await watch.next() == b"event"


@pytest.mark.parametrize("options", [{}, WAITS_AT_EACH_COMMAND])
async def test_a_watch_leaves_while_another_joins(options: Mapping[str, Any]) -> None:
    """Whenever the last watch of a subject leaves, another one that joins then sees each event from then on."""
    async with connected(options) as (peer, connection):
        for turns in range(30):
            (last,) = await until_begun(peer, next_number(connection.events("acme", "due-time-reached")))
            last.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            (joining,) = await until_begun(peer, next_number(connection.events("acme", "due-time-reached")))
            assert watched(peer) == WATCHED
            await fire(peer, turns)
            assert await joining == turns
            await peer.until(lambda: not watched(peer))
        assert peer.most == 2


@pytest.mark.parametrize("options", [{}, WAITS_AT_EACH_COMMAND])
async def test_a_watch_is_cancelled_while_it_subscribes(options: Mapping[str, Any]) -> None:
    """Whenever the first watch of a subject is cancelled, one that began right after it sees each event."""
    async with connected(options) as (peer, connection):
        for turns in range(30):
            cancelled = asyncio.ensure_future(next_number(connection.events("acme", "due-time-reached")))
            joining = asyncio.ensure_future(next_number(connection.events("acme", "due-time-reached")))
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert cancelled.cancelled()
            await peer.until(lambda: watched(peer) == WATCHED)
            await fire(peer, turns)
            async with asyncio.timeout(5):
                assert await joining == turns
            await peer.until(lambda: not watched(peer))
        assert peer.most == 2


async def test_watches_after_a_lost_connection() -> None:
    """All watches end. New ones see each event, also if nobody has read one of those that ended, and share again."""
    reconnected = asyncio.Event()

    async def note() -> None:
        reconnected.set()

    async with connected({"reconnected_cb": note}) as (peer, connection):
        old = [connection.events("acme", "due-time-reached") for _ in range(3)]
        begun = await until_begun(peer, *(next_number(watch) for watch in old))
        await fire(peer, 0)
        assert await asyncio.gather(*begun) == [0, 0, 0]
        waiting = [asyncio.ensure_future(anext(watch)) for watch in old[1:]]
        peer.disconnect()
        for each in waiting:
            with pytest.raises(
                NoAnswerError, match="connection to the broker has ended, and so has this watch; events may be missing"
            ):
                await each
        async with asyncio.timeout(10):
            await reconnected.wait()
        new = [connection.events("acme", "due-time-reached") for _ in range(3)]
        begun = await until_begun(peer, *(next_number(watch) for watch in new))
        assert watched(peer) == WATCHED
        await fire(peer, 1)
        assert await asyncio.gather(*begun) == [1, 1, 1]
        with pytest.raises(NoAnswerError, match="connection to the broker has ended"):
            await anext(old[0])
        await fire(peer, 2)
        assert await asyncio.gather(*map(next_number, new)) == [2, 2, 2]
        for watch in new:
            await watch.aclose()
        await peer.until(lambda: not watched(peer))
