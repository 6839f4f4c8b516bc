"""Which subjects are looked at for commands that wait, and in which order."""

from collections.abc import Mapping

import pytest

from timer_service.adapters.nats import candidates as module
from timer_service.adapters.nats.candidates import Candidates


def list_subjects(candidates: Candidates, numbers: Mapping[str, int], last_sequence: int = 100) -> None:
    candidates.begin_listing()
    candidates.compare([b'%s":%d' % (subject.encode(), number) for subject, number in numbers.items()])
    candidates.end_listing(last_sequence)


def look(candidates: Candidates) -> tuple[list[str], set[str]]:
    """Look at all candidates. Return the changed ones and the others."""
    changed, others = [], set()
    for subject in candidates.changed():
        changed.append(subject)
        candidates.remove(subject)
    for subject in candidates.others():
        others.add(subject)
        candidates.remove(subject)
    return changed, others


def test_a_backlog_at_the_start() -> None:
    """Without an earlier listing, every subject is a candidate once."""
    candidates = Candidates()
    list_subjects(candidates, {"a": 1, "b": 2})
    assert look(candidates) == ([], {"a", "b"})
    list_subjects(candidates, {"a": 1, "b": 2})
    assert look(candidates) == ([], set())


def test_changed_subjects_come_first() -> None:
    """A subject with another number and a new subject come first. The others come once in each backlog."""
    candidates = Candidates()
    list_subjects(candidates, {"quiet": 1, "good": 1, "expired": 2})
    candidates.forget_backlog()
    list_subjects(candidates, {"quiet": 1, "good": 2, "new": 1, "expired": 1})
    changed, others = look(candidates)
    assert (set(changed), others) == ({"good", "new", "expired"}, {"quiet", "good", "new", "expired"})
    list_subjects(candidates, {"quiet": 1, "good": 3, "new": 1, "expired": 1})
    assert look(candidates) == (["good"], set())


def test_delivered_commands_are_no_change() -> None:
    """Commands that the consumer has delivered since the listing do not make their subject a candidate."""
    candidates = Candidates()
    list_subjects(candidates, {"a": 1, "b": 9, "c": 1}, last_sequence=100)
    candidates.count_delivered("a", 101)
    candidates.count_delivered("b", 102)
    candidates.count_delivered("c", 100)  # the listing has it
    candidates.count_delivered("new", 103)
    list_subjects(candidates, {"a": 2, "b": 11, "c": 2, "new": 1, "newer": 1}, last_sequence=106)
    assert sorted(candidates.changed()) == ["b", "c", "newer"]


def test_a_subject_stays_until_it_is_removed() -> None:
    """A subject that could not be looked at is a candidate again."""
    candidates = Candidates()
    list_subjects(candidates, {"a": 1})
    assert list(candidates.others()) == ["a"]
    assert (list(candidates.changed()), list(candidates.others())) == (["a"], [])
    candidates.remove("a")
    assert list(candidates.changed()) == []


def test_no_backlog() -> None:
    """When nothing waits long, nothing is looked at."""
    candidates = Candidates()
    list_subjects(candidates, {"a": 1})
    list_subjects(candidates, {"a": 2})
    candidates.forget_backlog()
    assert look(candidates) == ([], set())


def test_a_listing_that_failed() -> None:
    """A listing that did not end leaves nothing behind that hides a change."""
    candidates = Candidates()
    list_subjects(candidates, {"a": 1, "b": 1})
    look(candidates)
    candidates.begin_listing()
    candidates.compare([b'a":2'])
    list_subjects(candidates, {"a": 2, "b": 2})
    assert sorted(candidates.changed()) == ["a", "b"]


def test_a_full_listing_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a listing that did not end do not count for the limit of the next one."""
    monkeypatch.setattr(module, "MOST_SUBJECTS", 3)
    candidates = Candidates()
    list_subjects(candidates, {"a": 1})
    candidates.begin_listing()
    candidates.compare([b'x":1', b'y":1', b'z":1'])
    list_subjects(candidates, {"a": 2})
    assert "a" in candidates.changed()


def test_delivered_commands_count_for_one_listing() -> None:
    """A command that a listing has is not counted again: it would hide the next command of its subject."""
    candidates = Candidates()
    list_subjects(candidates, {"a": 1}, last_sequence=100)
    candidates.count_delivered("a", 101)
    list_subjects(candidates, {"a": 2}, last_sequence=101)
    before = list(candidates.changed())
    list_subjects(candidates, {"a": 3}, last_sequence=102)
    assert (before, list(candidates.changed())) == ([], ["a"])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a listing beyond the limit are left out."""
    monkeypatch.setattr(module, "MOST_SUBJECTS", 3)
    candidates = Candidates()
    candidates.begin_listing()
    for number in range(9):
        candidates.compare([b'a%d":1' % number, b'b%d":1' % number])
    candidates.end_listing(18)
    assert len(list(candidates.others())) == 4
