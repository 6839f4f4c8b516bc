"""The queue of the requests of workers: turns, limits and expiry."""

import pytest

from timer_service.core.ports.broker import Request
from timer_service.core.requests.request_queue import QueueLimits, RequestQueue
from timer_service.core.values.budget import MIB

LIMITS = QueueLimits(waiting_bytes=MIB, batch_bytes=MIB, waiting=10)


def request(name: str, size: int = 0) -> Request:
    """Return a request of the tenant that the first letter of its name names."""
    return Request(name, name[0], b"x" * size, "_INBOX.a")


def add(queue: RequestQueue, *names: str, size: int = 0, now: float = 0) -> list[str]:
    """Add requests. Return the names of those that left."""
    return [left.name for name in names for left in queue.add(request(name, size), now)]


def take(queue: RequestQueue, now: float = 0) -> list[str]:
    return [each.request.name for each in queue.take(now).requests]


def test_tenants_take_turns() -> None:
    """A batch has one request of each tenant, then the next one of each. Those of one tenant keep their order."""
    queue = RequestQueue(LIMITS)
    add(queue, "a1", "a2", "a3", "b1", "c1", "c2")
    assert take(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_next_batch_goes_on_with_the_next_tenant() -> None:
    """A tenant that had no turn in one batch is the first one in the next batch."""
    queue = RequestQueue(LIMITS._replace(batch=2))
    add(queue, "a1", "a2", "b1", "c1")
    assert [take(queue), take(queue), take(queue)] == [["a1", "b1"], ["c1", "a2"], []]


@pytest.mark.parametrize(("size", "batches"), [(100, [["a1", "b1", "a2"]]), (600, [["a1"], ["b1"], ["a2"]])])
def test_batches_are_bounded_by_bytes(size: int, batches: list[list[str]]) -> None:
    """A batch has at most its bytes. A single request may have more."""
    queue = RequestQueue(LIMITS._replace(batch_bytes=500))
    add(queue, "a1", "a2", "b1", size=size)
    assert [take(queue) for _ in batches] == batches


def test_requests_that_are_put_back() -> None:
    """Requests that are put back keep their order and their age, and their tenants have the next turns."""
    queue = RequestQueue(LIMITS)
    add(queue, "a1", "b1", "a2", "c1", now=0)
    _, b1, c1, a2 = queue.take(1).requests
    add(queue, "d1", "a3", now=4)
    queue.put_back([b1, a2, c1])
    assert (len(queue), take(queue, 5)) == (5, ["b1", "a2", "c1", "d1"])
    (a3,) = queue.take(5).requests
    queue.put_back([a3])
    assert [each.name for each in queue.take(9.1).expired] == ["a3"]


def test_tenant_whose_requests_are_put_back_has_fewer() -> None:
    """A batch has as many requests of a tenant as were applied of its last ones, then twice as many, and so on."""
    queue = RequestQueue(LIMITS._replace(waiting=100, batch=50))
    add(queue, *(f"a{number}" for number in range(16)), "b1", "b2")
    first = queue.take(0).requests
    queue.put_back([each for each in first if each.request.tenant == "a"][2:])
    assert [take(queue), take(queue), take(queue)] == [
        ["a2", "a3"],
        ["a4", "a5", "a6", "a7"],
        [f"a{number}" for number in range(8, 16)],
    ]
    assert queue._fitting == {"a": 8}
    add(queue, *(f"a{number}" for number in range(60)))
    assert [len(take(queue)) for _ in range(4)] == [16, 32, 12, 0]
    assert queue._fitting == {}


def test_tenants_with_requests_that_are_put_back_are_forgotten() -> None:
    """What a batch has of a tenant is forgotten with its last request."""
    queue = RequestQueue(LIMITS)
    for number in range(20):
        queue.add(Request("report-tasks", f"tenant-{number}", b"", "_INBOX.a"), 0)
        queue.put_back(queue.take(0).requests)
        queue.take(0)
        queue.take(0)
    assert len(queue._fitting) <= 1


def test_newest_request_of_the_largest_tenant_leaves() -> None:
    """If too many requests wait, the newest one of the tenant with the most leaves. Those of others stay."""
    queue = RequestQueue(LIMITS)
    assert add(queue, *(f"a{number}" for number in range(12))) == ["a10", "a11"]
    assert add(queue, "b1", "b2") == ["a9", "a8"]
    assert take(queue)[:4] == ["a0", "b1", "a1", "b2"]


def test_limit_of_bytes() -> None:
    """If too many bytes wait, the newest requests of the tenant with the most bytes leave."""
    queue = RequestQueue(LIMITS)
    assert add(queue, "a1", "a2", "a3", "a4", "a5", size=200_000) == []
    assert add(queue, "a6", "a7", size=200_000) == ["a6", "a7"]
    assert add(queue, "b1", size=200_000) == ["a5"]
    assert take(queue) == ["a1", "b1", "a2", "a3", "a4"]


def test_expired_requests_are_not_applied() -> None:
    """A request that has waited for more than 5 seconds leaves as expired, and takes no place in the batch."""
    queue = RequestQueue(LIMITS._replace(batch=1))
    add(queue, "a1", now=0)
    add(queue, "a2", now=0.2)
    batch = queue.take(5.1)
    assert ([each.request.name for each in batch.requests], [each.name for each in batch.expired]) == (["a2"], ["a1"])


def test_tenants_without_requests_are_forgotten() -> None:
    """The queue remembers no tenant that has no request, so clients cannot make it grow by using many names."""
    queue = RequestQueue(LIMITS)
    for number in range(100):
        queue.add(Request("poll-tasks", f"tenant-{number}", b"", "_INBOX.a"), 0)
        queue.take(0)
    assert [len(queue), len(queue._waiting), len(queue._bytes)] == [0, 0, 0]


def test_request_that_cannot_be_applied_yet_keeps_out_no_other() -> None:
    """A tenant whose request has to wait has the last turn. Else its request would fill each batch alone."""
    queue = RequestQueue(LIMITS._replace(batch_bytes=500))
    add(queue, "a1", size=500)
    add(queue, "b1", "c1", size=1)
    batches = []
    for _ in range(3):
        batch = queue.take(0).requests
        batches.append([each.request.name for each in batch])
        queue.put_back([], [each for each in batch if each.request.name == "a1"])
    assert batches == [["a1"], ["b1", "c1"], ["a1"]]


def test_request_that_cannot_be_applied_yet_keeps_out_none_of_its_tenant() -> None:
    """A request that has to wait goes behind the other requests of its tenant, and keeps its age."""
    queue = RequestQueue(LIMITS)
    add(queue, "a1", "a2", now=0)
    a1, a2 = queue.take(0).requests
    add(queue, "a3", "a4", now=4)
    queue.put_back([a2], [a1])
    assert [take(queue, 4) for _ in range(3)] == [["a2"], ["a3", "a4"], ["a1"]]
    queue.put_back([], [a1])
    assert [each.name for each in queue.take(9).expired] == ["a1"]


def test_large_body_does_not_end_a_batch() -> None:
    """A request that does not fit is the first one of the next batch. The other tenants have all their turns."""
    queue = RequestQueue(LIMITS._replace(batch_bytes=500))
    add(queue, "b1", "b2", size=1)
    add(queue, "a1", "a2", size=500)
    add(queue, "c1", "b3", "c2", size=1)
    assert [take(queue) for _ in range(4)] == [["b1", "c1", "b2", "c2", "b3"], ["a1"], ["a2"], []]
