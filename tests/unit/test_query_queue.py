"""The queue of queries: turns, limits and expiry."""

import asyncio
from collections.abc import Callable

import pytest

from tests.harness.metrics import RecordingMetrics
from timer_service.core.requests.query_queue import QueryLimits, QueryQueue, QueryTurns
from timer_service.core.values.budget import LEAST_MEMORY_BYTES, MIB, Budget
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES

LIMITS = QueryLimits(waiting_bytes=MIB, waiting_of_tenant=10)
"""The other limits are the defaults, which the service uses."""
ONE_AT_A_TIME = LIMITS._replace(running=1, running_of_tenant=1)


def add(queue: QueryQueue[str], *queries: str, size: int = 0, now: float = 0) -> list[str]:
    """Add queries, each of the tenant that its first letter names. Return the queries that left."""
    return [left for query in queries for left in queue.add(query[0], query, size, now)]


def answer_all(queue: QueryQueue[str], now: float = 0) -> list[str]:
    """Answer the queries one by one. Return the answered queries in order."""
    answered: list[str] = []
    while turn := queue.take(now):
        if not turn.expired:
            answered.append(turn.query)
            queue.end(turn.tenant)
    return answered


def test_tenants_take_turns() -> None:
    """Each tenant has one turn, then the next tenant has one. The queries of one tenant keep their order."""
    queue = QueryQueue[str](LIMITS)
    add(queue, "a1", "a2", "a3", "a4", "b1", "c1", "c2")
    assert answer_all(queue) == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


def test_a_new_tenant_waits_for_one_turn_of_each_other_tenant() -> None:
    """A tenant that asks later comes before the second turns of tenants that wait with many queries."""
    queue = QueryQueue[str](ONE_AT_A_TIME)
    add(queue, "a1", "a2", "a3", "b1", "b2")
    first = queue.take(0)
    assert first is not None
    add(queue, "c1")
    queue.end(first.tenant)
    assert answer_all(queue) == ["b1", "a2", "c1", "b2", "a3"]


def test_a_few_queries_are_answered_at_a_time() -> None:
    """At most four queries are answered at a time, and at most three of one tenant."""
    queue = QueryQueue[str](LIMITS)
    add(queue, "a1", "a2", "a3", "a4", "a5")
    assert [queue.take(0) is not None for _ in range(4)] == [True, True, True, False]
    add(queue, "b1", "b2")
    started = [queue.take(0), queue.take(0)]
    assert [turn and turn.query for turn in started] == ["b1", None]
    queue.end("a")
    assert answer_all(queue) == ["a4", "b2", "a5"]


def test_expired_queries_are_not_answered() -> None:
    """A query that has waited for more than 5 seconds leaves the queue as expired, and uses no turn."""
    queue = QueryQueue[str](ONE_AT_A_TIME)
    add(queue, "a1", now=0)
    add(queue, "a2", now=0.2)
    expired = queue.take(5.1)
    assert expired is not None
    assert (expired.query, expired.expired) == ("a1", True)
    assert answer_all(queue, 5.1) == ["a2"]


def test_limit_of_one_tenant() -> None:
    """With too many queries of one tenant, its oldest query leaves. Queries of others stay."""
    queue = QueryQueue[str](LIMITS)
    assert add(queue, "b1", *(f"a{number}" for number in range(12))) == ["a0", "a1"]
    assert len(queue) == 11


def test_limit_of_bytes() -> None:
    """With too many waiting bytes, the oldest queries of the tenant with the most bytes leave."""
    queue = QueryQueue[str](LIMITS)
    large = 200 * 1024
    assert add(queue, "b1", "b2", "b3", "b4") == []
    assert add(queue, "a1", "a2", "a3", "a4", "a5", size=large) == ["a1"]
    assert add(queue, "c1", size=large) == ["a2"]
    assert sorted(answer_all(queue)) == ["a3", "a4", "a5", "b1", "b2", "b3", "b4", "c1"]
    assert add(queue, "a6", "a7", "a8", "a9", "c2", size=large) == []


@pytest.mark.parametrize("memory", [LEAST_MEMORY_BYTES, 256 * MIB, 4096 * MIB])
def test_limits_within_the_budget(memory: int) -> None:
    """The waiting queries and the replies that are written at a time fit into the share of the budget."""
    share = Budget.of(memory).queries
    limits = QueryLimits.of(share)
    assert limits.waiting_bytes + limits.running * MAX_MESSAGE_BYTES == share
    assert limits.waiting_bytes >= MIB


class Client:
    """Takes turns in tasks, and records which of them have begun."""

    def __init__(self, limits: QueryLimits, monotonic: Callable[[], float] = lambda: 0) -> None:
        self.metrics = RecordingMetrics()
        self.turns = QueryTurns(limits, self.metrics, monotonic)
        self.begun: list[str] = []
        self.go_on = asyncio.Event()

    async def ask(self, query: str) -> None:
        async with self.turns.turn(query[0], 0):
            self.begun.append(query)
            await self.go_on.wait()

    async def start(self, *queries: str) -> list[asyncio.Task[None]]:
        """Start a task for each query, and run the tasks until each of them waits."""
        tasks = [asyncio.create_task(self.ask(query)) for query in queries]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks


async def test_turns_begin_when_others_end() -> None:
    """A query waits until another query ends. The metric has the number of waiting queries."""
    client = Client(ONE_AT_A_TIME)
    tasks = await client.start("a1", "a2", "b1")
    assert (client.begun, client.metrics.waiting_queries[-1]) == (["a1"], 2)
    client.go_on.set()
    await asyncio.gather(*tasks)
    assert (client.begun, client.metrics.waiting_queries[-1]) == (["a1", "a2", "b1"], 0)


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_cancelled_queries(cancelled: int) -> None:
    """A query that is cancelled, during its turn or while it waits, does not keep the turn from others."""
    client = Client(ONE_AT_A_TIME)
    tasks = await client.start("a1", "a2", "a3")
    tasks[cancelled].cancel()
    client.go_on.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results].count(True) == 1
    assert client.begun[-1] == "a3"


async def test_query_that_is_cancelled_when_its_turn_begins() -> None:
    """A query that is cancelled between the begin of its turn and its first step gives the turn to the next query."""
    client = Client(ONE_AT_A_TIME)
    async with client.turns.turn("a", 0):
        second, third = await client.start("a2", "a3")
    second.cancel()  # its turn has begun, and its task has not run since then
    client.go_on.set()
    await asyncio.wait([second, third])
    assert (second.cancelled(), client.begun) == (True, ["a3"])


async def test_refused_queries_get_an_error() -> None:
    """Queries that leave a full queue, and queries that have waited too long, get the error BUSY."""
    now = [0.0]
    client = Client(ONE_AT_A_TIME._replace(waiting_of_tenant=2), lambda: now[0])
    tasks = await client.start("a1", "a2", "a3", "a4")
    now[0] = 6.0
    client.go_on.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [each.code if isinstance(each, Rejection) else each for each in results]
    assert errors == [None, Code.BUSY, Code.BUSY, Code.BUSY]
    assert [str(each).split(";")[0] for each in results[1:]] == [
        "too many queries are waiting",
        "the query waited for too long",
        "the query waited for too long",
    ]


def test_tenants_without_queries_are_forgotten() -> None:
    """The queue remembers no tenant that has no query, so clients cannot make it grow by using many names."""
    queue = QueryQueue[str](LIMITS)
    for number in range(100):
        queue.add(f"tenant-{number}", "query", 0, 0)
        turn = queue.take(0)
        assert turn is not None
        queue.end(turn.tenant)
    assert [len(each) for each in (queue._waiting, queue._bytes, queue._running)] == [0, 0, 0]
