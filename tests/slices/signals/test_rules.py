"""The rules of signals, work items and firings. The whole table of outcomes is in test_commands.py."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.clock import NOW, iso
from timer_service.core.events.cause import Cause
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Position
from timer_service.signals.firings import Firing, evaluate, refusal, time_firing, transition_firing
from timer_service.signals.items import ItemKey, NewItem, Transition, WorkItem, create_item, move_item
from timer_service.signals.messages import Outcome, TriggerKind
from timer_service.signals.signal import Key, Signal, SignalCommand, apply_command, fire, give_up, matches
from timer_service.signals.steps import Definition, SignalState, Status, Step, Verb
from timer_service.signals.triggers import Invalid, StatusTransition, TimeAt, read_trigger

KEY = Key("acme", "signal-1")
ITEM = ItemKey("acme", "item-1")
BLOCKED = Definition("item-1", TriggerKind.EVENT, '{"kind":"work_item.status.transition","to":["blocked"]}', None)
ELSEWHERE = BLOCKED._replace(work_item_id="item-2")
AT_NOON = Definition(None, TriggerKind.TIME, dump_data({"kind": "time.at", "at": iso(NOW)}), None)
COMMANDS = (Verb.CREATE, Verb.PAUSE, Verb.ACTIVATE, Verb.CANCEL, Verb.RESOLVE)
Command = tuple[Verb, int]


def step(
    signal: Signal | None, verb: Verb, sequence: int, definition: Definition = BLOCKED, now: int = NOW
) -> tuple[Signal, Outcome]:
    step = Step(Position(1, sequence), verb, definition if verb is Verb.CREATE else None)
    return apply_command(signal, SignalCommand(KEY, step, Cause()), now)


def after(*commands: Command, signal: Signal | None = None) -> Signal:
    for verb, sequence in commands:
        signal, _ = step(signal, verb, sequence, BLOCKED if sequence % 2 else ELSEWHERE)
    assert signal is not None
    return signal


def created(sequence: int = 1, definition: Definition = BLOCKED) -> Signal:
    return step(None, Verb.CREATE, sequence, definition)[0]


def with_state(signal: Signal, **changes: object) -> Signal:
    return signal._replace(state=signal.state._replace(**changes))  # type: ignore[arg-type]


def moved(sequence: int, to: str = "blocked", item: ItemKey = ITEM) -> Transition:
    return Transition(item, f"event-{sequence}", None, to, NOW, NOW, Position(1, sequence), Cause())


HISTORIES = st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=12).map(
    lambda verbs: [(verb, number) for number, verb in enumerate(verbs, 1)]
)


@given(HISTORIES.flatmap(lambda history: st.tuples(st.just(history), st.permutations(history))))
def test_order_of_delivery_does_not_matter(histories: tuple[list[Command], list[Command]]) -> None:
    """The order in which commands are delivered does not change the final signal."""
    in_order, delivered = (after(*history) for history in histories)
    assert (delivered.state, delivered.history) == (in_order.state, in_order.history)


@given(HISTORIES, st.data())
def test_redelivery_changes_nothing(history: list[Command], data: st.DataObject) -> None:
    """A command that is delivered again changes nothing. Its outcome is `unchanged` or `ignored_stale`."""
    signal = after(*history)
    again, outcome = step(signal, *data.draw(st.sampled_from(history)))
    assert again is signal
    assert outcome in {Outcome.IGNORED_STALE, Outcome.UNCHANGED}


def test_history_keeps_16_steps() -> None:
    """A history has the newest 16 steps. Older steps are in its base, and older commands are ignored."""
    flips = [(verb, number) for number, verb in enumerate(itertools.islice(itertools.cycle(COMMANDS[1:3]), 100), 2)]
    signal = after((Verb.CREATE, 1), *flips)
    assert len(signal.history.steps) == 16
    assert signal.state == SignalState(Status.ACTIVE, BLOCKED, Position(1, 1), Position(1, 101))
    assert step(signal, Verb.RESOLVE, 85) == (signal, Outcome.IGNORED_STALE)
    assert step(signal, Verb.RESOLVE, 102)[1] is Outcome.RESOLVED


def test_history_with_large_definitions() -> None:
    """A history with large definitions has fewer steps."""
    signal = created()
    for sequence in range(2, 12):
        signal, outcome = step(signal, Verb.CREATE, sequence, BLOCKED._replace(note=str(sequence % 10) * 50_000))
        assert outcome is Outcome.EXISTS
    assert len(signal.history.steps) == 2
    assert signal.state.definition == BLOCKED


@pytest.mark.parametrize(
    ("commands", "outcome", "status", "defined"),
    [
        ([(Verb.PAUSE, 2), (Verb.CREATE, 1)], Outcome.CREATED, Status.PAUSED, 1),
        ([(Verb.PAUSE, 2), (Verb.ACTIVATE, 3), (Verb.CREATE, 1)], Outcome.CREATED, Status.ACTIVE, 1),
        ([(Verb.ACTIVATE, 3), (Verb.PAUSE, 2), (Verb.CREATE, 1)], Outcome.CREATED, Status.ACTIVE, 1),
        ([(Verb.PAUSE, 2), (Verb.CANCEL, 3), (Verb.CREATE, 1)], Outcome.IGNORED_STALE, Status.CANCELLED, 1),
        ([(Verb.RESOLVE, 2), (Verb.CREATE, 1)], Outcome.IGNORED_STALE, Status.RESOLVED, 1),
        ([(Verb.CANCEL, 2), (Verb.CREATE, 3)], Outcome.CREATED, Status.ACTIVE, 3),
        ([(Verb.CREATE, 1), (Verb.CREATE, 6), (Verb.RESOLVE, 5)], Outcome.RESOLVED, Status.ACTIVE, 6),
        ([(Verb.CREATE, 1), (Verb.CREATE, 7), (Verb.PAUSE, 5)], Outcome.PAUSED, Status.PAUSED, 1),
        ([(Verb.CREATE, 3), (Verb.CREATE, 1)], Outcome.CREATED, Status.ACTIVE, 1),
        ([(Verb.CREATE, 1), (Verb.RESOLVE, 3), (Verb.CANCEL, 2)], Outcome.CANCELLED, Status.CANCELLED, 1),
    ],
)
def test_late_commands(commands: list[Command], outcome: Outcome, status: Status, defined: int) -> None:
    """A late command is applied at its position. Its outcome shows whether it has an effect."""
    *early, late = commands
    signal, found = step(after(*early), *late)
    assert (found, signal.state.status, signal.state.defined.sequence) == (outcome, status, defined)


def test_late_command_does_not_undo_a_firing() -> None:
    """A command from before a firing that is delivered after it does not undo the firing."""
    fired = fire(after((Verb.CREATE, 1), (Verb.ACTIVATE, 5)), Position(1, 3), NOW)
    paused, outcome = step(fired, Verb.PAUSE, 4)
    assert (paused.state.status, outcome) == (Status.FIRED, Outcome.IGNORED_STALE)
    assert after((Verb.ACTIVATE, 6), signal=paused).state.status is Status.ACTIVE


def test_late_create_replaces_a_definition_that_has_fired() -> None:
    """If a late CreateWorkSignal is in force, the firing of another definition does not count for it."""
    fired = fire(created(4, ELSEWHERE), Position(1, 5), NOW)
    refused, outcome = step(fired, Verb.CANCEL, 6)
    assert (refused.state.status, outcome) == (Status.FIRED, Outcome.ALREADY_FIRED)
    late, _ = step(refused, Verb.CREATE, 3)
    assert (late.state.status, late.state.definition) == (Status.CANCELLED, BLOCKED)


@pytest.mark.parametrize("end", [Verb.CANCEL, Verb.RESOLVE, None])
def test_given_up_firing_pauses_an_active_signal(end: Verb | None) -> None:
    """A firing that is given up pauses an active signal. A fired or ended signal does not change."""
    signal = fire(created(), Position(1, 2), NOW) if end is None else after((Verb.CREATE, 1), (end, 3))
    assert give_up(signal, Position(1, 2), "broken", NOW) == signal
    paused = give_up(created(), Position(1, 2), "broken", NOW)
    assert (paused.state.status, paused.last_error) == (Status.PAUSED, "broken")
    assert after((Verb.ACTIVATE, 3), signal=paused).last_error is None


@pytest.mark.parametrize("verb", COMMANDS[1:])
def test_retention_counts_from_the_last_command(verb: Verb) -> None:
    """The retention time of tombstones and ended signals starts again with each command."""
    tombstone, _ = step(None, verb, 2)
    later, _ = step(tombstone, verb, 3, now=NOW + 5)
    again, _ = step(later, verb, 3, now=NOW + 9)
    ended, _ = step(after((Verb.CREATE, 1), (Verb.RESOLVE, 2)), verb, 3, now=NOW + 5)
    seen = (tombstone.unused_since, later.unused_since, again.unused_since, ended.unused_since)
    assert seen == (NOW, NOW + 5, NOW + 5, NOW + 5)
    assert created().unused_since is None


@pytest.mark.parametrize(
    ("signal", "event", "matched"),
    [
        (created(), moved(2), True),
        (created(), moved(2, " BLOCKED"), True),
        (created(), moved(2, "done"), False),
        (created(2), moved(1), False),
        (created(), moved(2, item=ItemKey("acme", "item-2")), False),
        (created(), moved(2, item=ItemKey("other", "item-1")), False),
        (with_state(created(), status=Status.PAUSED), moved(2), False),
        (with_state(created(), definition=None), moved(2), False),
        (created(definition=AT_NOON), moved(2), False),
        (created(definition=BLOCKED._replace(trigger_spec="{}")), moved(2), False),
    ],
)
def test_matches(signal: Signal, event: Transition, matched: bool) -> None:  # noqa: FBT001
    """A signal matches only if it is active, its trigger is true, and the transition is newer than `since`."""
    assert matches(signal, event) is matched


def test_firing_id() -> None:
    """The id of a firing depends only on tenant, signal, definition and cause."""
    firing = transition_firing(created(), moved(2))
    again = firing._replace(due_at=NOW + 5, cause=Cause("another"))
    others = [
        firing._replace(dedupe_key="x"),
        firing._replace(signal=Key("other", "signal-1")),
        firing._replace(defined=Position(1, 9)),
        Firing(Key("acme", "signal"), Position(1, 1), "-1event-2", None, NOW, Position(1, 2), Cause()),
    ]
    assert firing.firing_id == again.firing_id
    assert len({firing.firing_id, *(each.firing_id for each in others)}) == 5


def test_instant_has_one_firing_per_create() -> None:
    """An instant has one firing for each CreateWorkSignal, however often the signal is paused and activated."""
    signal = created(definition=AT_NOON)
    active = after((Verb.PAUSE, 2), (Verb.ACTIVATE, 3), signal=signal)
    first, second = time_firing(signal, Cause()), time_firing(active, Cause("another"))
    again = time_firing(created(9, AT_NOON), Cause())
    assert first is not None and second is not None and again is not None  # noqa: PT018
    assert first.firing_id == second.firing_id != again.firing_id
    assert first.due_at == NOW
    assert refusal(active, second.defined, second.position) is None
    assert time_firing(created(), Cause()) is None


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (created(), None),
        (None, "the signal does not exist"),
        (step(None, Verb.PAUSE, 1)[0], "the signal does not exist"),
        (after((Verb.CREATE, 1), (Verb.CANCEL, 2)), "the signal is cancelled"),
        (
            after((Verb.CREATE, 1), (Verb.PAUSE, 3), (Verb.ACTIVATE, 4)),
            "the signal was activated after the cause",
        ),
        (after((Verb.CREATE, 1), (Verb.RESOLVE, 3), (Verb.CREATE, 5)), "the signal now has another definition"),
    ],
)
def test_refusal(signal: Signal | None, reason: str | None) -> None:
    """A firing is refused unless its signal has been active with the same definition since before the cause."""
    assert refusal(signal, Position(1, 1), Position(1, 2)) == reason


def test_failing_trigger_affects_only_its_signal() -> None:
    """A trigger that raises an error is skipped, and the evaluation reports that it is incomplete."""
    broken = with_state(created(), definition=BLOCKED._replace(trigger_spec="no JSON"))
    found, complete = evaluate(moved(2), [broken, created()])
    assert ([firing.dedupe_key for firing in found], complete) == (["event-2"], False)
    assert evaluate(moved(2), [created()])[1]


ITEM_HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from([None, "todo", "new"])), st.tuples(st.just("move"), st.text())
    ),
    max_size=6,
).map(lambda changes: list(enumerate(changes, 1)))


def item_after(history: list[tuple[int, tuple[str, str | None]]]) -> WorkItem:
    item = WorkItem(ITEM)
    for sequence, (kind, status) in history:
        if kind == "create":
            item, _ = create_item(item, NewItem(ITEM, status, Position(1, sequence)))
        else:
            item, _ = move_item(item, moved(sequence, status or ""))
    return item


@given(ITEM_HISTORIES.flatmap(lambda history: st.tuples(st.just(history), st.permutations(history))))
def test_work_item_ends_the_same_in_any_order(
    histories: tuple[list[tuple[int, tuple[str, str | None]]], list[tuple[int, tuple[str, str | None]]]],
) -> None:
    """A work item has the same status for any order of delivery."""
    in_order, delivered = histories
    assert item_after(delivered) == item_after(in_order)


def test_work_item_keeps_the_newest_status() -> None:
    """An older transition or a late CreateWorkItem does not replace the status of a newer command."""
    item, outcome = move_item(WorkItem(ITEM), moved(5, "done"))
    outcomes = [outcome]
    for sequence in (3, 7):
        item, outcome = create_item(item, NewItem(ITEM, "doing", Position(1, sequence)))
        outcomes.append(outcome)
    item, outcome = move_item(item, moved(4))
    assert item == WorkItem(ITEM, "done", Position(1, 3), Position(1, 5))
    assert [*outcomes, outcome] == ["transitioned", "ignored_stale", "unchanged", "recorded"]


def test_triggers_are_read_by_kind() -> None:
    """A spec is read by its `kind`, if the trigger kind of the signal allows it."""
    read = [
        read_trigger(definition.trigger_kind, definition.trigger_spec, has_work_item=True)
        for definition in (BLOCKED, AT_NOON, BLOCKED._replace(trigger_kind=TriggerKind.TIME))
    ]
    assert [type(each) for each in read] == [StatusTransition, TimeAt, Invalid]


@pytest.mark.parametrize(("count", "kind"), [(100, StatusTransition), (101, Invalid), (13_000, Invalid)])
def test_trigger_with_many_statuses(count: int, kind: type) -> None:
    """A trigger has at most 100 statuses. With more it is invalid, and reading it takes no longer for thousands."""
    spec = json.dumps({"kind": "work_item.status.transition", "to": [f"{number:x}" for number in range(count)]})
    read = read_trigger(TriggerKind.EVENT, spec, has_work_item=True)
    assert isinstance(read, kind)
    if isinstance(read, Invalid):
        assert read.reason.startswith("to: must have at most 100 items")


def test_statuses_of_a_trigger_are_prepared_once() -> None:
    """The statuses of a trigger are prepared once, so that each match is one look-up."""
    trigger = StatusTransition(kind="work_item.status.transition", to=[f" STATUS-{n} " for n in range(100)])
    assert trigger.matches("status-99")
    assert trigger._folded is trigger._folded
