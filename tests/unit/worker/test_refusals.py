"""Requests that the service refuses, or answers late: only the task at fault suffers, and only if it must."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.clock import in_virtual_time
from tests.harness.workers import now, virtually, worker
from tests.harness.workflow_service import MemoryService
from timer_service.client.errors import NoAnswerError, QueryError, TimerServiceError
from timer_service.worker import Context, workflow
from timer_service.worker.service import Unsent, send_in_halves


class Sick(MemoryService):
    """A service that refuses requests of one kind if they name one of some workflows."""

    def __init__(self, name: str, code: str, *sick: str, until: float = float("inf")) -> None:
        super().__init__()
        self._name, self._code, self._sick, self._until = name, code, sick, until
        self.refused = 0

    async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
        if name == self._name and now() < self._until and any(f'"{each}"'.encode() in body for each in self._sick):
            self.refused += 1
            await asyncio.sleep(0.001)
            raise QueryError(self._code, "sick")
        return await super().request(name, body, timeout_seconds)


@workflow("long")
async def long(ctx: Context, _: Any) -> Any:
    return await ctx.step("long", asyncio.sleep, 65, "done")


@workflow("single")
async def single(ctx: Context, data: Any) -> Any:
    calls.append(data)
    return await ctx.step("work", asyncio.sleep, 0, data)


calls: list[int] = []


@pytest.mark.parametrize("code", ["INTERNAL", "TOO_LARGE", "INVALID_PAYLOAD"])
def test_a_refused_renewal_loses_one_task(code: str) -> None:
    """If the service refuses a renewal because of one task, the others keep their leases."""

    async def main() -> None:
        service = Sick("renew-tasks", code, "w-3")
        for number in range(40):
            service.start(f"w-{number}", "long")
        async with worker(service, long):
            await service.until_ended(*(f"w-{number}" for number in range(40) if number != 3))
            assert now() < 70
            row = service.rows["w-3"]
            assert (row.status, row.attempt) == ("running", 3)
            row.status = "cancelled"

    in_virtual_time(main)


@virtually
async def test_a_report_that_fails_for_a_while() -> None:
    """A report that the service answers with INTERNAL is repeated as long as the task has its lease: it runs once."""
    calls.clear()
    service = Sick("report-tasks", "INTERNAL", "w-3", until=100)
    for number in range(8):
        service.start(f"w-{number}", "single", number)
    async with worker(service, single):
        await service.until_ended(*(f"w-{number}" for number in range(8) if number != 3))
        assert now() < 5
        await service.until_ended()
        assert 100 <= now() < 105
    assert sorted(calls) == list(range(8))
    assert service.refused < 100


@virtually
async def test_a_reply_without_an_outcome() -> None:
    """A reply that lacks the outcome of a report counts as none: the report is sent again."""

    class Short(MemoryService):
        async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
            reply = await super().request(name, body, timeout_seconds)
            return {"reports": []} if name == "report-tasks" and len(self.outcomes) == 1 else reply

    calls.clear()
    service = Short()
    row = service.start("w", "single", 1)
    async with worker(service, single):
        await service.until(lambda: len(service.outcomes) == 2)
    assert (row.status, service.outcomes, calls) == ("completed", ["completed", "unchanged"], [1])


@virtually
async def test_a_reply_about_an_older_token() -> None:
    """A worker gets a workflow again whose lease ran out at the service. A reply about the old token ends nothing."""

    @workflow("twice")
    async def twice(ctx: Context, _: Any) -> Any:
        return await ctx.step("work", step)

    async def step() -> None:
        began.append(now())
        await asyncio.sleep(25)

    began: list[float] = []
    service = MemoryService()
    row = service.start("w", "twice")
    async with worker(service, twice, slots=3):
        for number in range(2):
            await asyncio.sleep(3)
            row.lease_until = now()
            service.start(f"other-{number}", "single")  # so that the held poll looks again
        await service.until_ended("w")
    assert [round(each) for each in began] == [0, 3, 6]
    renewals = [json.loads(body)["tasks"] for name, body in service.requests if name == "renew-tasks"]
    assert {len(tasks) for tasks in renewals} == {1}


# The halves


class Answers:
    """A service that refuses some numbers."""

    def __init__(self, refuse: Callable[[list[int]], TimerServiceError | None]) -> None:
        self._refuse = refuse
        self.requests: list[list[int]] = []
        self.accepted: set[int] = set()

    async def send(self, items: Any) -> None:
        self.requests.append(list(items))
        if (error := self._refuse(list(items))) is not None:
            raise error
        self.accepted |= set(items)


async def test_the_item_at_fault_is_found() -> None:
    """About two requests for each halving find one of 1,000 items; all others are accepted."""
    error = QueryError("INVALID_PAYLOAD", "no")
    answers = Answers(lambda items: error if 77 in items else None)
    assert await send_in_halves(range(1000), answers.send) == Unsent([(77, error)], [])
    assert (answers.accepted, len(answers.requests) <= 21) == (set(range(1000)) - {77}, True)


async def test_a_fault_of_the_service_is_not_searched() -> None:
    """If nothing is accepted, a few requests are enough. All items are left, and none is refused."""
    answers = Answers(lambda _: QueryError("INTERNAL", "no"))
    unsent = await send_in_halves(range(1000), answers.send)
    assert (list(unsent.refused), sorted(unsent.left)) == ([], list(range(1000)))
    assert len(answers.requests) <= 13


@pytest.mark.parametrize("error", [NoAnswerError("no"), QueryError("BUSY", "no")])
async def test_no_halves_without_an_answer(error: TimerServiceError) -> None:
    """Without a reply, or from a busy service, nothing is known about the items."""
    answers = Answers(lambda _: error)
    assert await send_in_halves([1, 2, 3], answers.send) == Unsent((), [1, 2, 3], error)
    assert answers.requests == [[1, 2, 3]]


@pytest.mark.parametrize(("polls", "outages"), [(5, 0), (20, 1)])
def test_a_worker_without_answers_says_so(caplog: pytest.LogCaptureFixture, polls: int, outages: int) -> None:
    """A restart of the service is no news. A longer outage, or a wrong tenant, is logged once, and so is its end."""

    class Away(MemoryService):
        polls = 0

        async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
            self.polls += name == "poll-tasks"
            if self.polls <= polls:
                raise NoAnswerError("no service answers here")
            return await super().request(name, body, timeout_seconds)

    async def main() -> None:
        service = Away()
        service.start("w-1", "single", 1)
        async with worker(service, single):
            await service.until_ended("w-1")

    caplog.set_level(logging.INFO)
    in_virtual_time(main)
    begins = "no tasks for the tenant acme: no service answers here"
    wanted = [begins, "the service answers again for the tenant acme"] * outages
    assert [each.getMessage() for each in caplog.records] == wanted
