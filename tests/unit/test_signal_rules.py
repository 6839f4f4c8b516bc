"""What the signals' rules decide; the whole table of outcomes is in features/test_signals.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import NOW, iso
from timer_service.core.data import dump_data
from timer_service.core.message import Position
from timer_service.signals import rules
from timer_service.signals.messages import TriggerKind
from timer_service.signals.rules import (
    UNKNOWN,
    Cause,
    Decision,
    Definition,
    Firing,
    ItemKey,
    Key,
    Outcome,
    Signal,
    Status,
    Transition,
    WorkItem,
)
from timer_service.signals.triggers import Invalid, StatusTransition, TimeAt, read_trigger

KEY = Key("acme", "signal-1")
ITEM = ItemKey("acme", "item-1")
BLOCKED = Definition("item-1", TriggerKind.EVENT, '{"kind":"work_item.status.transition","to":["blocked"]}', None)
AT_NOON = Definition(None, TriggerKind.TIME, dump_data({"kind": "time.at", "at": iso(NOW)}), None)
COMMANDS = ("create", "pause", "activate", "cancel", "resolve")


def decide(command: str, signal: Signal | None, sequence: int, definition: Definition = BLOCKED) -> Decision:
    position = Position(1, sequence)
    match command:
        case "create":
            return rules.create(signal, KEY, definition, position, NOW)
        case "pause":
            return rules.pause(signal, KEY, position, NOW)
        case "activate":
            return rules.activate(signal, position)
        case "cancel":
            return rules.cancel(signal, KEY, position, NOW)
        case _:
            return rules.resolve(signal, KEY, position, NOW)


def after(*commands: tuple[str, int]) -> Signal | None:
    signal = None
    for command, sequence in commands:
        signal = decide(command, signal, sequence).signal or signal
    return signal


def created(sequence: int = 1, definition: Definition = BLOCKED) -> Signal:
    signal = decide("create", None, sequence, definition).signal
    assert signal is not None
    return signal


def moved(sequence: int, to: str = "blocked", item: ItemKey = ITEM) -> Transition:
    return Transition(item, f"event-{sequence}", None, to, NOW, NOW, Position(1, sequence), Cause())


@given(st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(1, 9)), max_size=8), st.sampled_from(COMMANDS))
def test_what_is_not_newer_changes_nothing(history: list[tuple[str, int]], late: str) -> None:
    """Whatever a signal has been through, a command that is not newer leaves it as it is, but for filling a gap."""
    signal = after(("create", 1), *history)
    assert signal is not None
    for sequence in range(1, signal.position.sequence + 1):
        decision = decide(late, signal, sequence)
        fills_gap = late == "create" and signal.definition is None
        assert fills_gap or (decision.signal, decision.changed) == (signal, False)
        assert fills_gap or decision.verdict in {Outcome.IGNORED_STALE, Outcome.UNCHANGED, Outcome.NOT_FOUND}


@pytest.mark.parametrize(
    ("commands", "status"),
    [
        ([("pause", 2), ("create", 1)], Status.PAUSED),
        ([("pause", 2), ("activate", 3), ("create", 1)], Status.ACTIVE),
        ([("pause", 2), ("cancel", 3), ("create", 1)], Status.CANCELLED),
        ([("resolve", 2), ("create", 1)], Status.RESOLVED),
        ([("cancel", 2), ("create", 3)], Status.ACTIVE),
        ([("cancel", 2), ("pause", 3), ("create", 1)], Status.CANCELLED),
    ],
)
def test_commands_that_come_before_their_signal(commands: list[tuple[str, int]], status: Status) -> None:
    """What newer commands have said of a signal to come holds once it comes; one that ended does not come."""
    signal = after(*commands)
    assert signal is not None
    assert signal.status is status
    assert (signal.definition is None) == (status in rules.ENDED)


@pytest.mark.parametrize(
    ("signal", "event", "matched"),
    [
        (created(), moved(2), True),
        (created(), moved(2, " BLOCKED"), True),
        (created(), moved(2, "done"), False),
        (created(2), moved(1), False),
        (created(), moved(2, item=ItemKey("acme", "item-2")), False),
        (created(), moved(2, item=ItemKey("other", "item-1")), False),
        (created()._replace(status=Status.PAUSED), moved(2), False),
        (created()._replace(definition=None), moved(2), False),
        (created(definition=AT_NOON), moved(2), False),
        (created(definition=BLOCKED._replace(trigger_spec="{}")), moved(2), False),
    ],
)
def test_matches(signal: Signal, event: Transition, matched: bool) -> None:  # noqa: FBT001
    """A signal fires on what it waits for, behind its place in the stream, while it is active."""
    assert rules.matches(signal, event) is matched


def test_firing_has_one_id_per_signal_and_cause() -> None:
    """The id of a firing follows from tenant, signal and cause, and from nothing else."""
    firing = rules.firing_on(created(), moved(2))
    again = firing._replace(due_at=NOW + 5, cause=Cause("another"))
    others = [
        firing._replace(dedupe_key="x"),
        firing._replace(signal=Key("other", "signal-1")),
        Firing(Key("acme", "signal"), "-1event-2", None, NOW, Cause()),
    ]
    assert firing.firing_id == again.firing_id
    assert len({firing.firing_id, *(each.firing_id for each in others)}) == 4


def test_reminder_has_one_firing_per_creation() -> None:
    """An instant is one cause, however often its signal is paused and activated; created anew it is another."""
    signal = created(definition=AT_NOON)
    paused = rules.pause(signal, KEY, Position(1, 2), NOW).signal
    active = rules.activate(paused, Position(1, 3)).signal
    assert active is not None
    first, second = rules.firing_at(signal, Cause()), rules.firing_at(active, Cause("another"))
    anew = rules.firing_at(created(9, AT_NOON), Cause())
    assert first is not None and second is not None and anew is not None  # noqa: PT018
    assert first.firing_id == second.firing_id != anew.firing_id
    assert first.due_at == NOW
    assert rules.firing_at(created(), Cause()) is None


def test_work_item_keeps_the_newest_status() -> None:
    """Neither an older transition nor a late creation takes back the status that a newer command has set."""
    unknown = WorkItem(ITEM, None, UNKNOWN)
    verdicts = []
    verdict, item = rules.transition(unknown, "done", Position(1, 5))
    verdicts.append(verdict)
    for sequence in (3, 7):
        verdict, item = rules.create_item(item, "doing", Position(1, sequence))
        verdicts.append(verdict)
    verdict, item = rules.transition(item, "blocked", Position(1, 4))
    assert item == WorkItem(ITEM, "done", Position(1, 5))
    assert [*verdicts, verdict] == ["transitioned", "ignored_stale", "unchanged", "recorded"]


def test_triggers_are_read_by_kind() -> None:
    """A spec is read by its kind, within what its signal's trigger kind allows."""
    read = [
        read_trigger(definition.trigger_kind, definition.trigger_spec, has_work_item=True)
        for definition in (BLOCKED, AT_NOON, BLOCKED._replace(trigger_kind=TriggerKind.TIME))
    ]
    assert [type(each) for each in read] == [StatusTransition, TimeAt, Invalid]
