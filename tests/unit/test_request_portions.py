"""Portions of workers' requests: what one transaction applies, and whose turn it is."""

from collections.abc import Sequence

from timer_service.core.ports.broker import Request
from timer_service.core.requests.request_intake import Asked
from timer_service.core.requests.request_portions import Portions, Work
from timer_service.core.requests.request_queue import Waiting
from timer_service.core.values.message import Payload


class Items(Payload):
    items: list[int]


def work(tenant: str, *sizes: int, body: int = 10) -> Work:
    """Return a request with items of these sizes."""
    waiting = Waiting(Request("r", tenant, b"x" * body, "_INBOX.a"), 0)
    return Work(waiting, Asked(tenant, Items(items=list(sizes)), "items"), sizes)


class Site:
    """Portions of 100 bytes."""

    def __init__(self) -> None:
        self.portions = Portions(100, large_bytes=25)

    def choose(self, *works: Work) -> tuple[list[tuple[str, list[int]]], list[str]]:
        """Return the items of the next portion, and the tenants whose requests are left. What was chosen is applied."""
        pieces, left = self.portions.choose(works)
        for each in pieces:
            each.work.applied += each.items
        return [(each.asked.tenant, each.asked.request.items) for each in pieces], tenants(left)


def tenants(works: Sequence[Work]) -> list[str]:
    return [each.asked.tenant for each in works]


def test_small_requests_share_a_portion() -> None:
    """All requests for which a portion has room are applied, in their order."""
    assert Site().choose(work("a", 30), work("b", 20, 30), work("a", 20)) == (
        [("a", [30]), ("b", [20, 30]), ("a", [20])],
        [],
    )


def test_tenants_take_turns() -> None:
    """A tenant with many requests leaves room for one request of each other tenant. The order of a tenant stays."""
    many = [work("a", 30), work("a", 30), work("a", 31), work("a", 1)]
    found, left = Site().choose(*many, work("b", 30), work("c", 5))
    assert (found, left) == ([("a", [30]), ("a", [30]), ("b", [30]), ("c", [5])], ["a", "a"])


def test_the_first_request_has_a_place() -> None:
    """The request that has waited longest is applied, also if many smaller ones would fill the portion."""
    found, left = Site().choose(work("a", 50), *(work(f"t{number}", 10) for number in range(6)))
    assert (found[0], len(found), left) == (("a", [50]), 6, ["t5"])


def test_large_request_leaves_half_of_the_portion() -> None:
    """A large request is divided. Its part has half of the portion, or one item, and the rest is for others."""
    site = Site()
    found, left = site.choose(work("a", 20, 20, 20, 1000), work("b", 50), work("c", 1))
    assert (found, left) == ([("a", [20, 20]), ("b", [50]), ("c", [1])], [])
    assert site.choose(work("b", 50)) == ([("a", [20]), ("b", [50])], [])
    assert site.choose(work("b", 49), work("c", 2)) == ([("a", [1000]), ("b", [49])], ["c"])
    assert site.portions.is_empty


def test_large_requests_take_turns() -> None:
    """Large requests of several tenants take turns. A tenant has one at a time, and their bodies have a limit."""
    site = Site()
    assert site.choose(work("a", 50, 50), work("b", 40, 40), work("a", 60), work("c", 60)) == (
        [("a", [50])],
        ["a", "c"],
    )
    assert site.choose(work("a", 60)) == ([("b", [40])], ["a"])
    assert site.choose() == ([("a", [50])], [])
    assert site.choose(work("a", 60)) == ([("b", [40])], [])
    assert site.choose() == ([("a", [60])], [])


def test_single_large_request_may_have_any_body() -> None:
    """A request whose body alone is larger than the limit is kept if no other one is."""
    assert Site().choose(work("a", 60, 60, body=1000), work("b", 60)) == ([("a", [60])], ["b"])


def test_late_and_failed_requests_are_forgotten() -> None:
    """Large requests that are late or have failed leave."""
    site = Site()
    late, failed = work("a", 60, 60), work("b", 60, 60)
    site.choose(late, failed)
    assert site.portions.remove_late(lambda waiting: waiting.request.tenant == "a") == [late]
    site.portions.forget(failed)
    assert site.portions.is_empty
