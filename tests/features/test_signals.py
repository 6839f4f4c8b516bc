import json
from typing import Any

import pytest

from tests.support.clock import NOW, ManualClock, after, iso
from tests.support.signals import BLOCKED, Signals
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.core.message import Address, Kind

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INBOX = "_INBOX.me.1"
WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """Return the signals slice over every store in turn."""
    return Signals(store, memory_broker, clock)


def at(instant: int, **spec: Any) -> dict[str, Any]:
    return {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(instant), **spec}}


# The source's own plan


async def test_fires_when_its_item_is_blocked(signals: Signals) -> None:
    """Create a work item and a signal, come to blocked: one event, one task, and the signal has fired."""
    await signals.tell("CreateWorkItem", workItemId="item-1", status="doing")
    await signals.create()
    await signals.transition("blocked", message_id="command-3")
    assert signals.wakes == [NOW]
    await signals.run()
    (event,) = signals.told()
    (task,) = await signals.rows("work_item_tasks")
    (firing,) = await signals.rows("work_signal_firings")
    assert (event["payload"]["dedupeKey"], event["payload"]["firingId"]) == ("command-3", firing["firing_id"])
    assert (task["work_item_id"], task["firing_id"]) == ("item-1", firing["firing_id"])
    assert (firing["status"], firing["attempt"], await signals.status()) == ("enqueued", 1, "fired")
    assert signals.outcomes() == ["created", "created", "transitioned"]
    assert signals.outbox_wakes == [NOW]


async def test_second_instance_fires_nothing_twice(signals: Signals) -> None:
    """After a restart, and beside another instance, what has fired does not fire again."""
    await signals.create()
    await signals.transition()
    await signals.run()
    other = Signals(signals.database, signals.broker, signals.clock)
    await other.firings.recover()
    signals.clock.advance(minutes=10)
    await other.run()
    await signals.run()
    assert signals.fired() == ["signal-1"]
    assert len(await signals.rows("work_item_tasks")) == 1


async def test_event(signals: Signals) -> None:
    """The event is what the contract says, to the last field and header, and says what caused it."""
    await signals.create()
    await signals.transition(
        eventId="event-1",
        envelope={"id": "cmd-1", "correlationId": "corr-1"},
        headers={"traceparent": TRACEPARENT, "tracestate": "a=b"},
    )
    signals.clock.advance(milliseconds=5)
    await signals.run()
    (message,) = signals.broker.events
    (firing,) = await signals.rows("work_signal_firings")
    firing_id = firing["firing_id"]
    assert message.address == Address(Kind.EVENT, "acme", "work-signal-fired")
    assert message.headers == {"traceparent": TRACEPARENT, "tracestate": "a=b"}
    assert json.loads(message.body) == {
        "id": f"fired-{firing_id}",
        "type": "work.signal.fired",
        "tenantId": "acme",
        "correlationId": "corr-1",
        "causationId": "cmd-1",
        "timestampMs": NOW + 5,
        "payload": {
            "tenantId": "acme",
            "signalId": "signal-1",
            "firingId": firing_id,
            "workItemId": "item-1",
            "dedupeKey": "event-1",
            "taskId": f"task-{firing_id}",
            "firedAt": iso(NOW + 5),
        },
    }
    assert signals.instruments.lateness[0] == 0.005


# What fires


@pytest.mark.parametrize("status", ["blocked", "  Blocked ", "BLOCKED"])
async def test_statuses_match_however_they_are_written(signals: Signals, status: str) -> None:
    """Spaces around a status and its case do not matter, neither the transition's nor the trigger's."""
    await signals.create("mine", triggerSpec={"kind": "work_item.status.transition", "to": ["done", " bLocked"]})
    await signals.transition(status)
    await signals.run()
    assert signals.fired() == ["mine"]


async def test_what_does_not_match_fires_nothing(signals: Signals) -> None:
    """Another status, another work item and another tenant's work item leave a signal as it is."""
    await signals.create()
    await signals.transition("done")
    await signals.transition(item="item-2")
    await signals.transition(tenant="other")
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")
    assert await signals.rows("work_signal_firings") == []


async def test_only_what_happens_from_its_creation_on(signals: Signals) -> None:
    """A transition before the signal does not fire it; the next one does, and only once."""
    await signals.transition(eventId="before")
    await signals.create()
    await signals.transition(eventId="after")
    signals.clock.advance(milliseconds=1)
    await signals.transition(eventId="later")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.told()] == ["after"]
    failed = [row["last_error"] for row in await signals.rows("work_signal_firings") if row["status"] == "failed"]
    assert failed == ["the signal is fired"]


async def test_time(signals: Signals) -> None:
    """A signal that waits for an instant fires at it, not a millisecond before, without a work item or a task."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    assert signals.wakes == [due]
    assert await signals.firings.next_at() == due
    signals.clock.set(due - 1)
    await signals.run()
    early = signals.fired()
    signals.clock.set(due)
    await signals.run()
    (event,) = signals.told()
    assert (early, event["payload"]["firedAt"]) == ([], iso(due))
    assert event["payload"].keys().isdisjoint({"workItemId", "taskId"})
    assert await signals.rows("work_item_tasks") == []


async def test_past_instant_fires_at_once(signals: Signals) -> None:
    """An instant that has passed already fires with the next tick."""
    await signals.remind(iso(NOW - 1))
    await signals.run()
    assert signals.fired() == ["signal-1"]


@pytest.mark.parametrize(
    ("kind", "spec", "reason"),
    [
        ("event", {}, "kind: must be one of work_item.status.transition where triggerKind is event"),
        ("event", {"kind": 7}, "kind: must be one of"),
        ("event", {"kind": "time.at", "at": iso(NOW)}, "kind: must be one of"),
        ("time", BLOCKED, "kind: must be one of time.at where triggerKind is time"),
        ("event", {**BLOCKED, "to": []}, "to: "),
        ("event", {**BLOCKED, "ot": ["blocked"]}, "ot: "),
        ("time", {"kind": "time.at", "at": "tomorrow"}, "at: must be an ISO 8601 instant"),
        ("time", {"kind": "time.at"}, "at: Field required"),
    ],
)
async def test_invalid_trigger_is_kept_and_never_fires(
    signals: Signals, kind: str, spec: dict[str, Any], reason: str
) -> None:
    """A trigger that can't be read is kept as it is; its view says why, and its outcome counts it."""
    await signals.create(triggerKind=kind, triggerSpec=spec)
    await signals.transition()
    signals.clock.advance(days=1)
    await signals.run()
    view = await signals.ask("get-signal", signalId="signal-1")
    assert (signals.fired(), view["triggerSpec"]) == ([], spec)
    assert view["triggerError"].startswith(reason)
    assert signals.instruments.commands["CreateWorkSignal", "created_invalid"] == 1


async def test_transition_trigger_needs_a_work_item(signals: Signals) -> None:
    """A signal that waits for a transition of no work item says so and never fires."""
    await signals.create(item=None)
    view = await signals.ask("get-signal", signalId="signal-1")
    assert view["triggerError"] == "workItemId: is needed by this kind of trigger"


# Commands, again and out of order


async def test_redelivered_transition_makes_one_firing(signals: Signals) -> None:
    """A transition that comes again, as the same command or as another of the same event id, counts once."""
    await signals.create()
    position = await signals.transition(eventId="event-1")
    signals.broker.deliver(position)
    await signals.consume()
    await signals.transition("done", eventId="event-1")
    await signals.run()
    signals.broker.deliver(position)
    await signals.consume()
    await signals.run()
    assert signals.fired() == ["signal-1"]
    assert len(await signals.rows("work_signal_firings")) == len(await signals.rows("work_item_events")) == 1
    assert signals.outcomes() == ["created", "transitioned", "unchanged", "unchanged", "unchanged"]


async def test_transition_before_its_signal_in_one_batch(signals: Signals) -> None:
    """A transition that stands in a batch before the older command that creates its signal fires it all the same."""
    create = signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    transition = signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.broker.deliver(transition, create)
    await signals.consume()
    await signals.run()
    assert signals.fired() == ["signal-1"]


async def test_transition_long_before_its_signal(signals: Signals) -> None:
    """A transition that was evaluated before the older command that creates its signal comes fires it all the same."""
    create = await signals.create()
    await signals.sql("DELETE FROM work_signals")  # as if that command had not come yet
    await signals.transition()
    await signals.run()
    assert signals.fired() == []
    signals.broker.deliver(create)
    await signals.consume()
    await signals.run()
    assert signals.fired() == ["signal-1"]


@pytest.mark.parametrize(
    ("verb", "outcome", "status"),
    [("Pause", "created", "paused"), ("Cancel", "ignored_stale", None), ("Resolve", "ignored_stale", None)],
)
async def test_command_before_its_signal(signals: Signals, verb: str, outcome: str, status: str | None) -> None:
    """A newer command that comes before the one that creates its signal is not undone by that."""
    create = signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    newer = signals.send(f"{verb}WorkSignal", signalId="signal-1")
    signals.broker.deliver(newer, create)
    await signals.consume()
    await signals.transition()
    await signals.run()
    answer = await signals.ask("get-signal", signalId="signal-1")
    assert (signals.fired(), answer.get("status")) == ([], status)
    assert signals.outcomes() == sorted([outcome, "not_found", "transitioned"])


async def test_older_transition_counts_but_does_not_set_the_status(signals: Signals) -> None:
    """A transition that is delivered late fires what waits for it and leaves the newer status of its work item."""
    await signals.create()
    late = signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    done = signals.send("TransitionWorkItem", workItemId="item-1", to="done")
    signals.broker.deliver(done, late)
    await signals.consume()
    await signals.run()
    (item,) = await signals.rows("work_items")
    assert (item["status"], signals.fired()) == ("done", ["signal-1"])
    assert signals.outcomes() == ["created", "recorded", "transitioned"]


async def test_redelivered_commands_undo_nothing(signals: Signals) -> None:
    """Whatever was told of a signal before its last command leaves it as it is when it comes again."""
    old = [await signals.create(), await signals.about("Pause"), await signals.about("Activate")]
    last = await signals.about("Cancel")
    for position in [*old, last]:
        signals.broker.deliver(position)
        await signals.consume()
    assert await signals.status() == "cancelled"
    assert signals.instruments.commands["CreateWorkSignal", "ignored_stale"] == 1
    assert signals.instruments.commands["CancelWorkSignal", "unchanged"] == 1


async def test_commands_of_one_batch_see_each_other(signals: Signals) -> None:
    """In one batch each command sees what those before it did, across signals, work items and firings."""
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


# The life of a signal


async def test_paused_signal_waits_for_what_comes_after(signals: Signals) -> None:
    """What happens while a signal is paused does not fire it; once it is active again the next transition does."""
    await signals.create()
    await signals.about("Pause")
    await signals.transition(eventId="while paused")
    await signals.about("Activate")
    await signals.run()
    assert signals.fired() == []
    await signals.transition(eventId="then")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.told()] == ["then"]


async def test_fired_signal_can_fire_again(signals: Signals) -> None:
    """A fired signal that is activated fires once more, on the next transition, under another id."""
    await signals.create()
    await signals.transition()
    await signals.run()
    await signals.about("Activate")
    await signals.run()
    assert len(signals.fired()) == 1
    await signals.transition()
    await signals.run()
    assert len({event["id"] for event in signals.told()}) == len(signals.fired()) == 2


@pytest.mark.parametrize(
    ("verb", "outcome", "reason"),
    [
        ("Pause", "paused", "the signal is paused"),
        ("Cancel", "cancelled", "the signal is cancelled"),
        ("Resolve", "resolved", "the signal is resolved"),
    ],
)
async def test_signal_that_is_not_active_any_more(signals: Signals, verb: str, outcome: str, reason: str) -> None:
    """A firing whose signal is not active when its turn comes fails, with the reason, and nothing comes of it."""
    await signals.create()
    await signals.transition()
    await signals.about(verb)
    await signals.run()
    (firing,) = (await signals.ask("list-firings", signalId="signal-1"))["firings"]
    assert (firing["status"], firing["lastError"]) == ("failed", reason)
    assert (signals.broker.events, await signals.status()) == ([], outcome)
    assert await signals.rows("work_item_tasks") == []


async def test_reminder_paused_over_its_instant(signals: Signals) -> None:
    """An instant that passes while its signal is paused fires once it is active again, and then never more."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    await signals.about("Pause")
    signals.clock.set(due)
    await signals.run()
    paused = signals.fired()
    await signals.about("Activate")
    await signals.run()
    await signals.about("Activate")
    await signals.run()
    assert (paused, signals.fired(), await signals.status()) == ([], ["signal-1"], "fired")
    assert signals.instruments.commands["ActivateWorkSignal", "already_fired"] == 1


async def test_cancelled_and_created_anew(signals: Signals) -> None:
    """A signal created anew under the id of a cancelled one is another: what the old one waited for does not count."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    await signals.about("Cancel")
    await signals.remind(iso(after(minutes=2)))
    signals.clock.set(due)
    await signals.run()
    early = signals.fired()
    signals.clock.advance(minutes=1)
    await signals.run()
    assert (early, signals.fired()) == ([], ["signal-1"])


OUTCOMES = {
    # status today -> outcome of Create (the same), Create (another), Pause, Activate, Cancel, Resolve
    "none": ["created", "created", "not_found", "not_found", "not_found", "not_found"],
    "active": ["unchanged", "exists", "paused", "unchanged", "cancelled", "resolved"],
    "paused": ["unchanged", "exists", "unchanged", "activated", "cancelled", "resolved"],
    "fired": ["unchanged", "exists", "already_fired", "activated", "already_fired", "resolved"],
    "fired at its instant": ["exists", "exists", "already_fired", "already_fired", "already_fired", "resolved"],
    "cancelled": ["created", "created", "already_ended", "already_ended", "unchanged", "already_ended"],
    "resolved": ["created", "created", "already_ended", "already_ended", "already_ended", "unchanged"],
}
COMMANDS = ["Create", "Create another", "Pause", "Activate", "Cancel", "Resolve"]


async def bring_to(signals: Signals, status: str, signal: str) -> None:
    match status:
        case "none":
            return
        case "fired at its instant":
            await signals.remind(iso(NOW), signal)
        case _:
            await signals.create(signal, f"item of {signal}")
    match status:
        case "fired":
            await signals.transition(item=f"item of {signal}")
        case "paused" | "cancelled" | "resolved":
            await signals.about({"paused": "Pause", "cancelled": "Cancel", "resolved": "Resolve"}[status], signal)
    await signals.run()


async def test_every_outcome(signals: Signals) -> None:
    """Each command on a signal in each status ends as the table of docs/signals.md says, and is told on request."""
    found: dict[str, list[str]] = {status: [] for status in OUTCOMES}
    for status in OUTCOMES:
        for name in COMMANDS:
            signal = f"{status}/{name}"
            await bring_to(signals, status, signal)
            told: Any = {"headers": {"Timer-Reply-To": INBOX}}
            match name:
                case "Create":
                    await signals.create(signal, f"item of {signal}", **told)
                case "Create another":
                    await signals.create(signal, "another", **told)
                case _:
                    await signals.about(name, signal, **told)
            found[status].append(json.loads(signals.broker.replies[-1].body)["outcome"])
    assert found == OUTCOMES


async def test_reply_shows_the_signal(signals: Signals) -> None:
    """A reply carries the signal as it stands now; one about a work item or an unknown signal carries none."""
    told: Any = {"headers": {"Timer-Reply-To": INBOX}}
    await signals.create(note="mind the gap", **told)
    await signals.transition(**told)
    await signals.about("Pause", "nobody", **told)
    created, moved, unknown = [json.loads(reply.body) for reply in signals.broker.replies]
    assert created["signal"] == {
        "tenantId": "acme",
        "signalId": "signal-1",
        "status": "active",
        "triggerKind": "event",
        "triggerSpec": BLOCKED,
        "createdAt": iso(NOW),
        "workItemId": "item-1",
        "note": "mind the gap",
    }
    assert [set(each) for each in (moved, unknown)] == [{"commandId", "outcome"}] * 2


@pytest.mark.parametrize(
    ("message_type", "fields", "path"),
    [
        ("CreateWorkItem", {}, "payload.workItemId"),
        ("CreateWorkItem", {"workItemId": "i", "status": "a\nb"}, "payload.status"),
        ("TransitionWorkItem", {"workItemId": "i"}, "payload.to"),
        ("TransitionWorkItem", {"workItemId": "i", "to": ""}, "payload.to"),
        ("TransitionWorkItem", {"workItemId": "i", "to": "a", "occurredAt": "now"}, "payload.occurredAt"),
        ("TransitionWorkItem", {"workItemId": "i", "to": "a", "frm": "b"}, "payload.frm"),
        ("CreateWorkSignal", {"signalId": "s", "triggerKind": "cron", "triggerSpec": {}}, "payload.triggerKind"),
        ("CreateWorkSignal", {"signalId": "s", "triggerKind": "event", "triggerSpec": []}, "payload.triggerSpec"),
        ("CreateWorkSignal", {"signalId": "s", "triggerKind": "time", "triggerSpec": {}, "note": "\0"}, "payload.note"),
        ("PauseWorkSignal", {"signalId": "\x01"}, "payload.signalId"),
        ("ResolveWorkSignal", {}, "payload.signalId"),
    ],
)
async def test_wrong_field(signals: Signals, message_type: str, fields: dict[str, Any], path: str) -> None:
    """A command with a wrong field is rejected with the field's name, and kept."""
    await signals.tell(message_type, **fields)
    (rejected,) = signals.told("CommandRejected")
    assert path in [each["path"] for each in rejected["payload"]["errors"]]
    assert len(signals.broker.dead_letters) == 1
