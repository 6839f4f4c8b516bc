"""Several commands in one batch: signals end the same in any batches."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.clock import NOW, ManualClock, iso
from tests.harness.memory_folder import memory_folder
from tests.harness.signals import BLOCKED, Signals
from tests.harness.stores import open_sqlite
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database

WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}
DONE: dict[str, Any] = WAITING | {"triggerSpec": BLOCKED | {"to": ["done"]}}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """The signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


# Several commands in one batch


async def test_commands_of_one_batch_see_each_other(signals: Signals) -> None:
    """Each command of a batch sees the effects of the earlier ones on signals, work items and firings."""
    signals.send("CreateWorkItem", workItemId="item-1")
    for signal in ("fires", "paused", "cancelled", "back"):
        signals.send("CreateWorkSignal", signalId=signal, **WAITING)
    signals.send("PauseWorkSignal", signalId="paused")
    signals.send("PauseWorkSignal", signalId="back")
    signals.send("ActivateWorkSignal", signalId="back")
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.send("CancelWorkSignal", signalId="cancelled")
    signals.send("CreateWorkSignal", signalId="late", **WAITING)
    await signals.consume()
    await signals.run()
    assert sorted(signals.fired()) == ["back", "fires"]
    assert await signals.status("late") == "active"


async def test_more_signals_than_the_inline_limit(signals: Signals) -> None:
    """A transition fires all 39 active signals if the 40th signal is paused in the same batch."""
    names = [f"signal-{number:02}" for number in range(40)]
    for name in names:
        signals.send("CreateWorkSignal", signalId=name, **WAITING)
    await signals.consume()
    signals.send("PauseWorkSignal", signalId=names[0])
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    await signals.consume()
    await signals.run()
    assert sorted(signals.fired()) == names[1:]


async def test_ended_and_created_again_in_one_batch(signals: Signals) -> None:
    """A firing from before the end of a signal fails with the reason, and does not fire the new signal."""
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId="before")
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.consume()
    (firing,) = await signals.firings_of()
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")
    assert (firing["status"], firing["lastError"]) == ("failed", "the signal is resolved")


async def test_queued_firing_of_a_signal_that_is_created_again(signals: Signals) -> None:
    """A queued firing fails if its signal is ended and created again in one batch."""
    await signals.create()
    await signals.transition(eventId="before")
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.consume()
    (firing,) = await signals.firings_of()
    await signals.run()
    assert (signals.fired(), firing["lastError"]) == ([], "the signal is resolved")


async def test_signal_that_cannot_be_matched_does_not_fail_the_batch(signals: Signals) -> None:
    """A trigger that raises an error affects only its own signal. The other signals fire."""
    for name in ("broken", "sound"):
        await signals.create(name)
    await signals.sql("UPDATE work_signals SET trigger_spec = 'no JSON' WHERE signal_id = 'broken'")
    await signals.transition()
    await signals.run()
    assert (signals.fired(), signals.outcomes()) == (["sound"], ["created", "created", "transitioned"])
    assert [row["evaluate_at"] for row in await signals.rows("work_item_events")] == [None]
    assert signals.broker.dead_letters == []


# Causes


async def test_same_event_id_on_another_item(signals: Signals) -> None:
    """A signal that is created again on another work item fires on that item's transition of the same id."""
    await signals.create()
    await signals.transition(eventId="1")
    await signals.run()
    await signals.about("Resolve")
    await signals.create(item="item-2")
    await signals.transition(item="item-2", eventId="1")
    await signals.run()
    assert [event["payload"]["workItemId"] for event in signals.events_of()] == ["item-1", "item-2"]
    assert len({event["id"] for event in signals.events_of()}) == 2


@pytest.mark.parametrize("evaluating", [True, False])
async def test_transition_before_a_pause_does_not_count(signals: Signals, *, evaluating: bool) -> None:
    """A transition from before a pause does not fire the signal after it is activated, however late it is processed."""
    handled_by = Signals(signals.database, signals.broker, signals.clock, enabled=evaluating)
    await handled_by.create()
    await handled_by.transition()
    await handled_by.about("Pause")
    await handled_by.about("Activate")
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")


# Random histories


class Sent(NamedTuple):
    type: str
    fields: dict[str, Any]


NAMES = st.sampled_from(["signal-1", "signal-2"])
ITEMS = st.sampled_from(["item-1", "item-2"])
STATUSES = st.sampled_from(["blocked", "done"])
REMINDER = {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(NOW)}}
ON_ITEM = st.builds(
    lambda item, to: {
        "workItemId": item,
        "triggerKind": "event",
        "triggerSpec": {"kind": "work_item.status.transition", "to": [to]},
    },
    ITEMS,
    STATUSES,
)
ABOUT = ["PauseWorkSignal", "ActivateWorkSignal", "CancelWorkSignal", "ResolveWorkSignal"]
COMMANDS = st.one_of(
    st.builds(
        lambda name, spec: Sent("CreateWorkSignal", {"signalId": name, **spec}), NAMES, ON_ITEM | st.just(REMINDER)
    ),
    st.builds(lambda verb, name: Sent(verb, {"signalId": name}), st.sampled_from(ABOUT), NAMES),
    st.builds(lambda item, to: Sent("TransitionWorkItem", {"workItemId": item, "to": to}), ITEMS, STATUSES),
    st.builds(
        lambda item, to: Sent("CreateWorkItem", {"workItemId": item, **to}),
        ITEMS,
        st.just({}) | st.just({"status": "new"}),
    ),
)
HISTORIES = st.lists(COMMANDS, min_size=2, max_size=14)


async def play(history: Sequence[Sent], sizes: Sequence[int]) -> dict[str, Any]:
    """Handle a history in the given batches, fire everything, and return all rows and outcomes."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        async with open_sqlite(Path(folder) / "timers.db") as database:
            signals = Signals(database, MemoryBroker(), ManualClock(NOW))
            for size in sizes:
                for sent in history[signals.sent : signals.sent + size]:
                    signals.send(sent.type, message_id=f"command-{signals.sent:02}", **sent.fields)
                await signals.consume()
            queued = await signals.rows("work_signal_firings")
            await signals.run()
            tables = ("work_items", "work_item_events", "work_signals", "work_signal_firings")
            return {
                "outcomes": signals.outcomes(),
                "fired": sorted(
                    (each["payload"]["signalId"], each["payload"]["dedupeKey"]) for each in signals.events_of()
                ),
                "queued": plain(queued),
                **{table: plain(await signals.rows(table)) for table in tables},
            }


def plain(rows: Sequence[Any], *without: str) -> list[dict[str, Any]]:
    """Return rows without some of their columns."""
    return [{name: row[name] for name in row.keys() if name not in without} for row in rows]  # noqa: SIM118 - no mapping


def sizes_of(total: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, total), min_size=1, max_size=total).map(lambda sizes: fill_up(sizes, total))


def fill_up(sizes: list[int], total: int) -> list[int]:
    """Return batch sizes that add up to `total`."""
    found: list[int] = []
    for size in [*sizes, total]:
        if (left := total - sum(found)) > 0:
            found.append(min(size, left))
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.data())
def test_batch_sizes_do_not_matter(history: list[Sent], data: st.DataObject) -> None:
    """The sizes of the batches change neither rows nor outcomes nor firings."""
    sizes = data.draw(sizes_of(len(history)))
    single = asyncio.run(play(history, [1] * len(history)))
    batched = asyncio.run(play(history, sizes))
    for found in (single, batched):
        found["work_signal_firings"] = plain(found["work_signal_firings"], "lease_token")
    assert batched == single
