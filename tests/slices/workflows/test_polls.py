"""Held polls: which lanes to look at and when, which polls leave, and how they share tasks."""

from collections import Counter

import pytest

from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import Request
from timer_service.workflows.protocol import MAX_SLOTS, PollTasks
from timer_service.workflows.tasks.claims import share_tasks
from timer_service.workflows.tasks.polls import HeldPolls, Poll

ORDER = ("acme", "default", "order")
SHIP = ("acme", "default", "ship")


def poll(worker: str = "w", *types: str, tenant: str = "acme", slots: int = 10) -> Poll:
    wanted = PollTasks(worker_id=worker, types=list(types or ["order"]), slots=slots)
    return Poll(Request("poll-tasks", tenant, b"", f"_INBOX.{worker}"), wanted)


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


def test_every_lane_has_its_look() -> None:
    """While a few lanes are looked at in each pass and are due again at once, all lanes get as many looks."""
    polls = held(*(poll(f"w{number}", f"type-{number:03}") for number in range(30)))
    looks: Counter[Lane] = Counter()
    for _ in range(30):
        for lane in polls.take_due(5, 10):
            looks[lane] += 1
            polls.wake(lane, 5)
    assert set(looks.values()) == {10}


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


def test_a_poll_of_a_known_lane_needs_no_look() -> None:
    """While a lane is known to have nothing, another poll of it, and the same worker's next one, need no look."""
    first = poll("a")
    polls = held(first)
    polls.take_due(5, 10)
    polls.wake(ORDER, 1000)
    second = poll("b")
    polls.add(second)
    assert not polls.must_look(second, 999)
    polls.remove(first)
    polls.remove(second)
    polls.add(poll("a"))
    assert (polls.take_due(999, 10), polls.take_due(1000, 10)) == ([], [ORDER])


def test_lanes_without_polls_cost_nothing() -> None:
    """A lane without a poll is forgotten when its look is due. Rows in it wake nobody."""
    only = poll()
    polls = held(only)
    polls.remove(only)
    assert polls.take_due(5, 10) == []
    assert (polls.wake(ORDER, 5), polls.next_look(), polls._lanes) == (False, None, {})


def test_newer_poll_replaces_the_one_of_the_same_worker() -> None:
    """A worker has one poll for a queue. Its newer poll replaces the older one, which nobody waits for."""
    old, new = poll("a"), poll("a")
    polls = held(old, poll("a", tenant="other"))
    assert polls.add(new).replaced is old
    assert (polls.current(old), len(polls), list(polls.polls_of(ORDER))) == (new, 2, [new])


def test_too_many_polls() -> None:
    """If too many polls are held, the newest one of the tenant with the most leaves."""
    flood = [poll(f"a{number}") for number in range(5)]
    polls = held(*flood, most=5)
    late = poll("a5")
    assert polls.add(late).refused == [late]
    assert polls.add(poll("b", tenant="other")).refused == [flood[4]]
    assert len(polls) == 5


def test_polls_with_many_types() -> None:
    """Polls with many types leave earlier, because each type may be a lane to look at."""
    polls = HeldPolls(most_types=300)
    many = [f"type-{number}" for number in range(100)]
    refused = [len(polls.add(poll(f"a{number}", *many)).refused) for number in range(5)]
    assert refused == [0, 0, 0, 1, 1]


def test_lanes_of_refused_polls_are_not_remembered() -> None:
    """Polls with ever new types do not make the memory grow, whether they are refused, replaced or answered."""
    polls = HeldPolls(most_types=300)
    for number in range(1000):
        added = poll(f"w{number % 4}", *(f"{number}-{each}" for each in range(100)))
        polls.add(added)
        for lane in polls.take_due(number, 100):
            polls.wake(lane, 10**6)
        if number % 3 == 0 and polls.current(added) is added:
            polls.remove(added)
    assert len(polls._lanes) <= 300 + 100
    assert len(polls._looks) <= 2 * len(polls._lanes) + 1001


def test_a_hint_makes_all_lanes_due() -> None:
    """After a hint of another instance, every lane that has a poll is looked at."""
    polls = held(poll("a"), poll("b", tenant="other"))
    for lane in polls.take_due(5, 10):
        polls.wake(lane, 1000)
    polls.wake_all(6)
    assert len(polls.take_due(6, 10)) == 2


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


def test_polls_that_are_taken_get_nothing() -> None:
    """A poll for which a claim is under way is not counted on."""
    one = poll()
    one.taken = True
    assert shares(held(one), {ORDER: 5}) == []


@pytest.mark.parametrize(("kept", "claimed", "fitting"), [(3, 10, 6), (0, 10, 2), (10, 10, MAX_SLOTS)])
def test_fewer_large_tasks_are_claimed(kept: int, claimed: int, fitting: int) -> None:
    """If only some of the claimed tasks fit into a reply, the next claim takes twice as many as did fit."""
    polls = held(poll(slots=1000))
    polls.record_fitting(ORDER, kept, claimed)
    assert shares(polls, {ORDER: 5000}, limit=2000) == [("w", "order", fitting)]
