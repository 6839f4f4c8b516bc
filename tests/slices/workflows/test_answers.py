"""The answers to polls: one task sends them, in order, also while the broker is slow."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from timer_service.core.ports.broker import QueryReply, Request, RequestSubscription
from timer_service.workflows.tasks import dispatcher
from timer_service.workflows.tasks.dispatcher import Answers

NO_TASKS = QueryReply(b'{"tasks":[]}')


class SlowSubscription:
    """Takes answers when it may."""

    def __init__(self) -> None:
        self.may_take = asyncio.Event()
        self.taken: list[list[str]] = []

    async def reply(self, replies: Sequence[tuple[Request, QueryReply]]) -> None:
        self.taken.append([request.reply_to for request, _ in replies])
        await self.may_take.wait()


@pytest.fixture
async def slow() -> SlowSubscription:
    return SlowSubscription()


def answer(to: str) -> tuple[Request, QueryReply]:
    return Request("poll-tasks", "acme", b"", to), NO_TASKS


async def test_answers_are_sent_together(slow: SlowSubscription) -> None:
    """While the broker takes answers slowly, the next ones wait. One task sends them together, in order."""
    waiting = Answers(cast(RequestSubscription, slow))
    before = len(asyncio.all_tasks())
    waiting.add([answer("a")])
    await asyncio.sleep(0)
    for to in "bcd":
        waiting.add([answer(to)])
    assert len(asyncio.all_tasks()) - before == 1
    slow.may_take.set()
    await waiting.until_sent()
    assert slow.taken == [["a"], ["b", "c", "d"]]


async def test_more_polls_wait_for_a_slow_broker(slow: SlowSubscription, monkeypatch: pytest.MonkeyPatch) -> None:
    """If many answers wait, `until_few` waits until they are sent."""
    monkeypatch.setattr(dispatcher, "_MOST_WAITING", 2)
    waiting = Answers(cast(RequestSubscription, slow))
    waiting.add([answer("a")])
    await asyncio.sleep(0)
    waiting.add([answer("b"), answer("c")])
    await waiting.until_few()
    waiting.add([answer("d")])
    held = asyncio.create_task(waiting.until_few())
    await asyncio.sleep(0)
    assert not held.done()
    slow.may_take.set()
    await held
    assert slow.taken == [["a"], ["b", "c", "d"]]


async def test_answers_go_on_after_an_error(slow: SlowSubscription, monkeypatch: pytest.MonkeyPatch) -> None:
    """If answers cannot be sent, later ones are."""

    async def fail(_replies: Sequence[tuple[Request, QueryReply]]) -> None:
        raise ConnectionResetError

    waiting = Answers(cast(RequestSubscription, slow))
    slow.may_take.set()
    with monkeypatch.context() as broken:
        broken.setattr(slow, "reply", fail)
        waiting.add([answer("a")])
        await waiting.until_sent()
    waiting.add([answer("b")])
    await waiting.until_sent()
    assert slow.taken == [["b"]]
