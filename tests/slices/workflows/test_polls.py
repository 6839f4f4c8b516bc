"""Held polls: which lanes to look at and when, which polls leave, and how they share tasks."""

import pytest

from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import Request
from timer_service.workflows.protocol import MAX_SLOTS, PollTasks
from timer_service.workflows.tasks.claims import share_tasks
from timer_service.workflows.tasks.polls import HeldPolls, Poll, end_of

ORDER = ("acme", "default", "order")
SHIP = ("acme", "default", "ship")


def poll(worker: str = "w", *types: str, tenant: str = "acme", slots: int = 10, ends_at: int = 10_000) -> Poll:
    wanted = PollTasks(worker_id=worker, types=list(types or ["order"]), slots=slots)
    return Poll(Request("poll-tasks", tenant, b"", f"_INBOX.{worker}"), wanted, ends_at)


def held(*polls: Poll, most: int = 100) -> HeldPolls:
    polls_held = HeldPolls(most)
    for each in polls:
        polls_held.add(each)
    return polls_held


def shares(polls: HeldPolls, available: dict[Lane, int], limit: int = 1000) -> list[tuple[str, str, int]]:
    """Return worker, type and count of each share."""
    found = share_tasks(available, polls.polls_of, polls.fitting, limit)
    return sorted((each.poll.wanted.worker_id, each.lane[2], each.tasks) for each in found)


def test_a_new_poll_is_looked_at_once() -> None:
    """The lanes of a new poll are due at once. After the look they are due when the look says."""
    polls = held(poll("a", "order", "ship"))
    assert (polls.next_look(), sorted(polls.take_due(5, 10))) == (0, [ORDER, SHIP])
    assert (polls.next_look(), polls.take_due(5, 10)) == (None, [])
    polls.wake(ORDER, 100)
    polls.wake(SHIP, 50)
    assert (polls.next_look(), polls.take_due(49, 10)) == (50, [])
    assert polls.take_due(100, 10) == [SHIP, ORDER]


def test_looks_come_in_the_order_in_which_they_became_due() -> None:
    """A lane that is due gets its look before lanes that become due later, whatever their names and instants are."""
    polls = held(poll("a", "b", "c", "a"))
    (first,) = polls.take_due(5, 1)
    polls.wake(first, 0)  # its row is available since long ago
    (second,) = polls.take_due(5, 1)
    polls.wake(second, 5)
    polls.add(poll("new", "0"))
    looks = [each[2] for each in (first, second, *polls.take_due(6, 10))]
    assert looks == ["b", "c", "a", "b", "c", "0"]


def test_clock_that_is_set_back() -> None:
    """After the clock was set back, every lane is looked at: its row may be due by the new clock."""
    polls = held(poll())
    polls.take_due(1000, 10)
    polls.wake(ORDER, 6000)
    assert (polls.take_due(2000, 10), polls.take_due(500, 10)) == ([], [ORDER])


def test_a_wake_during_a_look_is_kept() -> None:
    """A row that becomes available while its lane is looked at makes the lane due again after the look."""
    polls = held(poll())
    polls.take_due(5, 10)
    assert polls.wake(ORDER, 5)
    polls.wake(ORDER, 1000)  # what the look found
    assert polls.take_due(5, 10) == [ORDER]


def test_lanes_without_polls() -> None:
    """A lane is known until its next look, so the next poll of a worker needs no look of its own."""
    first = poll("a")
    polls = held(first)
    polls.take_due(5, 10)
    polls.wake(ORDER, 1000)
    assert polls.take_of_worker(poll("a")) == [first]
    assert polls.wake(ORDER, 1000) is False
    polls.add(poll("a"))
    assert (polls.take_due(999, 10), polls.take_due(1000, 10)) == ([], [ORDER])
    polls.wake(ORDER, 2000)
    polls.take_all()
    assert (polls.take_due(2000, 10), polls.next_look()) == ([], None)


def test_the_ends_of_polls() -> None:
    """Polls leave when their time is up. Long ones that end within 100 ms end together, never late."""
    polls = held(*(poll(str(number), ends_at=end_of(number, 10_000)) for number in (150, 101, 199, 200)))
    assert (polls.next_end, polls.take_ended(10_099)) == (10_100, [])
    assert [each.wanted.worker_id for each in polls.take_ended(10_100)] == ["150", "101", "199"]
    assert (len(polls), polls.next_end, end_of(5, 999), end_of(5, 1000)) == (1, 10_200, 1004, 1000)


def test_too_many_polls() -> None:
    """If too many polls are held, the newest one of the tenant with the most leaves."""
    flood = [poll(f"a{number}") for number in range(5)]
    polls = held(*flood, most=5)
    late = poll("a5")
    assert polls.add(late) == [late]
    assert polls.add(poll("b", tenant="other")) == [flood[4]]
    assert len(polls) == 5


def test_polls_with_many_types() -> None:
    """Polls with many types leave earlier, because each type may be a lane to look at."""
    polls = HeldPolls(most_types=300)
    many = [f"type-{number}" for number in range(100)]
    refused = [len(polls.add(poll(f"a{number}", *many))) for number in range(5)]
    assert refused == [0, 0, 0, 1, 1]
    polls.take_all()
    assert polls.add(poll("b", *many)) == []


def test_workers_of_a_lane_share_its_tasks() -> None:
    """Few tasks are spread over the polls of their lane. Nobody gets more than its slots."""
    polls = held(poll("a", slots=10), poll("b", slots=1), poll("c", slots=10))
    assert shares(polls, {ORDER: 7}) == [("a", "order", 3), ("b", "order", 1), ("c", "order", 3)]
    assert shares(polls, {ORDER: 100}) == [("a", "order", 10), ("b", "order", 1), ("c", "order", 10)]


def test_lanes_of_a_poll_share_its_slots() -> None:
    """A poll of two types gets tasks of both."""
    polls = held(poll("a", "order", "ship", slots=4))
    assert shares(polls, {ORDER: 100, SHIP: 100}) == [("a", "order", 2), ("a", "ship", 2)]
    assert shares(polls, {ORDER: 100, SHIP: 1}) == [("a", "order", 3), ("a", "ship", 1)]


def test_tenants_share_a_transaction() -> None:
    """The tasks of a tenant with many lanes and workers do not delay those of another tenant."""
    busy = [poll(f"a{number}", f"type-{number}", slots=1000) for number in range(50)]
    polls = held(*busy, poll("b", tenant="other"))
    available: dict[Lane, int] = {("acme", "default", f"type-{number}"): 1000 for number in range(50)}
    available["other", "default", "order"] = 5
    found = shares(polls, available, limit=100)
    assert sum(count for worker, _, count in found if worker == "b") == 5
    assert sum(count for *_, count in found) == 100


@pytest.mark.parametrize(
    ("claims", "fitting"), [([(3, 10)], 6), ([(0, 10)], 2), ([(10, 10)], MAX_SLOTS), ([(3, 10), (6, 6)], 12)]
)
def test_fewer_large_tasks_are_claimed(claims: list[tuple[int, int]], fitting: int) -> None:
    """A claim takes at most twice as many tasks as did fit into the last reply: fewer if some of them did not fit."""
    polls = held(poll(slots=1000))
    for kept, claimed in claims:
        polls.record_fitting(ORDER, kept, claimed)
    assert shares(polls, {ORDER: 5000}, limit=2000) == [("w", "order", fitting)]
