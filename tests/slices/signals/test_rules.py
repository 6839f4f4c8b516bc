"""The rules of signals and firings. The whole table of outcomes is in test_commands.py."""

import pytest

from tests.harness.clock import NOW, iso
from timer_service.core.events.cause import Cause
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Position
from timer_service.signals.firings import Firing, evaluate, refusal, time_firing, transition_firing
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import (
    Definition,
    ItemKey,
    Key,
    Signal,
    SignalCommand,
    Status,
    Transition,
    apply_command,
    fire,
    matches,
)

KEY = Key("acme", "signal-1")
ITEM = ItemKey("acme", "item-1")
BLOCKED = Definition("item-1", TriggerKind.EVENT, '{"kind":"work_item.status.transition","to":["blocked"]}', None)
SHARP_S = BLOCKED._replace(trigger_spec=BLOCKED.trigger_spec.replace("bl", "ß"))
AT_NOON = Definition(None, TriggerKind.TIME, dump_data({"kind": "time.at", "at": iso(NOW)}), None)


def created(sequence: int = 1, definition: Definition = BLOCKED) -> Signal:
    position = Position(1, sequence)
    signal, _ = apply_command(None, SignalCommand(KEY, Status.ACTIVE, position, Cause(), definition), NOW)
    assert signal is not None
    return signal


def after(signal: Signal, *changes: tuple[Status, int]) -> Signal:
    """Return a signal after the commands that lead to these statuses, at these sequences."""
    for status, sequence in changes:
        changed, _ = apply_command(signal, SignalCommand(KEY, status, Position(1, sequence), Cause()), NOW)
        assert changed is not None
        signal = changed
    return signal


def moved(sequence: int, to: str = "blocked", item: ItemKey = ITEM) -> Transition:
    return Transition(item, f"event-{sequence}", None, to, NOW, NOW, Position(1, sequence), Cause())


@pytest.mark.parametrize(
    ("signal", "event", "matched"),
    [
        (created(), moved(2), True),
        (created(), moved(2, " BLOCKED"), True),
        (created(definition=SHARP_S), moved(2, "SSocked"), True),
        (created(), moved(2, "done"), False),
        (created(2), moved(2), False),
        (created(), moved(2, item=ItemKey("acme", "item-2")), False),
        (created(), moved(2, item=ItemKey("other", "item-1")), False),
        (created()._replace(status=Status.PAUSED), moved(2), False),
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
    active = after(signal, (Status.PAUSED, 2), (Status.ACTIVE, 3))
    first, second = time_firing(signal, Cause()), time_firing(active, Cause("another"))
    again = time_firing(created(9, AT_NOON), Cause())
    assert first is not None and second is not None and again is not None  # noqa: PT018
    assert first.firing_id == second.firing_id != again.firing_id
    assert first.due_at == NOW
    assert refusal(active, second.defined, second.position) is None


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (created(), None),
        (after(created(), (Status.CANCELLED, 2)), "the signal is cancelled"),
        (after(created(), (Status.PAUSED, 3), (Status.ACTIVE, 4)), "the signal was activated after the cause"),
        (fire(created(), NOW), "the signal is fired"),
        (created(5), "the signal now has another definition"),
    ],
)
def test_refusal(signal: Signal, reason: str | None) -> None:
    """A firing is refused unless its signal has been active with the same definition since before the cause."""
    assert refusal(signal, Position(1, 1), Position(1, 2)) == reason


def test_failing_trigger_affects_only_its_signal() -> None:
    """A trigger that raises an error is skipped, and the other signals fire."""
    broken = created()._replace(definition=BLOCKED._replace(trigger_spec="no JSON"))
    assert [firing.dedupe_key for firing in evaluate(moved(2), [broken, created()])] == ["event-2"]
