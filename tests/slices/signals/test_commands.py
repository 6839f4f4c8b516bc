"""The commands and events of work signals, as a user sees them.

Each test runs on the slice in this process and on the real service, on every store.
"""

import json
from typing import Any

from tests.harness.clock import iso
from tests.harness.signals import BLOCKED, SignalConversation
from timer_service.core.values.address import Address, Kind

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}
LONG_AGO = "2020-01-01T00:00:00Z"


# From a transition to its event


async def test_event(signals: SignalConversation) -> None:
    """A signal fires once: its status, one task, and an event with every field of the contract, and with its cause."""
    await signals.request("CreateWorkItem", workItemId="item-1", status="doing")
    await signals.create()
    await signals.transition(
        eventId="event-1",
        envelope={"id": "cmd-1", "correlationId": "corr-1"},
        headers={"traceparent": TRACEPARENT, "tracestate": "a=b"},
    )
    await signals.run()
    (message,) = await signals.stored()
    (firing,) = await signals.firings_of()
    body = json.loads(message.body)
    assert message.address == Address(Kind.EVENT, signals.tenant, "work-signal-fired")
    assert (message.headers["traceparent"], message.headers["tracestate"]) == (TRACEPARENT, "a=b")
    assert body == {
        "id": f"fired-{firing['firingId']}",
        "type": "work.signal.fired",
        "tenantId": signals.tenant,
        "correlationId": "corr-1",
        "causationId": "cmd-1",
        "timestampMs": body["timestampMs"],
        "payload": {
            "tenantId": signals.tenant,
            "signalId": "signal-1",
            "firingId": firing["firingId"],
            "workItemId": "item-1",
            "dedupeKey": "event-1",
            "taskId": f"task-{firing['firingId']}",
            "firedAt": iso(body["timestampMs"]),
        },
    }
    (task,) = await signals.tasks_of()
    assert (task["taskId"], task["firingId"]) == (body["payload"]["taskId"], firing["firingId"])
    assert task["createdAt"] == firing["settledAt"] == body["payload"]["firedAt"]
    assert (firing["status"], await signals.status()) == ("enqueued", "fired")


# Triggers


async def test_other_transitions_fire_nothing(signals: SignalConversation) -> None:
    """A transition to another status, of another work item or of another tenant does not fire the signal."""
    await signals.create()
    await signals.transition("done")
    await signals.transition(item="item-2")
    await signals.transition(tenant=f"{signals.tenant}-other")
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")
    assert await signals.firings_of() == []


async def test_only_transitions_after_the_creation_count(signals: SignalConversation) -> None:
    """A transition before the signal does not fire it. Of the later transitions only the first fires it."""
    await signals.transition(eventId="before")
    await signals.create()
    await signals.transition(eventId="after")
    await signals.run()
    await signals.transition(eventId="later")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["after"]


async def test_instant(signals: SignalConversation) -> None:
    """A signal that waits for an instant fires at that instant and not before, without a work item or a task."""
    due = signals.now() + 200
    await signals.remind(iso(due - 1000), "past")  # fires at once
    await signals.remind(iso(due))
    await signals.until(due)
    await signals.run()
    (_, event) = signals.events_of()
    assert signals.fired() == ["past", "signal-1"]
    assert iso(due) <= event["payload"]["firedAt"] <= iso(signals.now())
    assert event["payload"].keys().isdisjoint({"workItemId", "taskId"})


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("event", {}, "kind: must be one of work_item.status.transition where triggerKind is event"),
    ("event", {"kind": 7}, "kind: must be one of"),
    ("event", {"kind": "time.at", "at": LONG_AGO}, "kind: must be one of"),
    ("time", BLOCKED, "kind: must be one of time.at where triggerKind is time"),
    ("event", {**BLOCKED, "to": []}, "to: "),
    ("event", {**BLOCKED, "to": ["x"] * 101}, "to: must have at most 100 items"),
    ("event", {**BLOCKED, "ot": ["blocked"]}, "ot: "),
    ("time", {"kind": "time.at", "at": "tomorrow"}, "at: must be an ISO 8601 instant"),
    ("time", {"kind": "time.at"}, "at: is missing"),
]


async def test_invalid_trigger_is_kept_and_never_fires(signals: SignalConversation) -> None:
    """An invalid trigger is stored. The view shows the reason, and the outcome is `created_invalid`."""
    for number, (kind, spec, _) in enumerate(INVALID):
        reply = await signals.create(f"signal-{number}", triggerKind=kind, triggerSpec=spec)
        assert reply["outcome"] == "created_invalid"
    await signals.create("no item", item=None)
    await signals.transition()
    await signals.run()
    views = [await signals.ask("get-signal", signalId=f"signal-{number}") for number in range(len(INVALID))]
    assert (signals.fired(), [view["triggerSpec"] for view in views]) == ([], [spec for _, spec, _ in INVALID])
    for view, (_, _, reason) in zip(views, INVALID, strict=True):
        assert view["triggerError"].startswith(reason)
    without = await signals.ask("get-signal", signalId="no item")
    assert without["triggerError"] == "workItemId: required by this kind of trigger"


# Work items


async def test_outcomes_of_work_items(signals: SignalConversation) -> None:
    """A CreateWorkItem creates a work item that no earlier one and no transition has named. A signal does not count."""
    await signals.create()
    await signals.transition(item="item-2")
    for item in ("item-1", "item-1", "item-2"):
        await signals.request("CreateWorkItem", workItemId=item)
    assert signals.outcomes() == ["created", "created", "transitioned", "unchanged", "unchanged"]


# Repeated commands


async def test_repeated_transition_makes_one_firing(signals: SignalConversation) -> None:
    """A transition with a known event id counts once, before its signal has fired and after."""
    await signals.create()
    for status in ("blocked", "blocked", "done"):
        await signals.transition(status, eventId="event-1")
    await signals.run()
    await signals.transition(eventId="event-1")
    await signals.run()
    assert (signals.fired(), len(await signals.firings_of()), len(await signals.tasks_of())) == (["signal-1"], 1, 1)
    assert signals.outcomes() == ["created", "transitioned", "unchanged", "unchanged", "unchanged"]


# States and outcomes


async def test_paused_signal_ignores_transitions(signals: SignalConversation) -> None:
    """A transition during a pause does not fire the signal. The next transition after the activation does."""
    await signals.create()
    await signals.about("Pause")
    await signals.transition(eventId="while paused")
    await signals.about("Activate")
    await signals.run()
    assert signals.fired() == []
    await signals.transition(eventId="then")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["then"]


async def test_fired_signal_can_fire_again(signals: SignalConversation) -> None:
    """A fired signal that is activated fires again on the next transition, with another event id."""
    await signals.create()
    await signals.transition()
    await signals.run()
    await signals.about("Activate")
    await signals.run()
    assert len(signals.fired()) == 1
    await signals.transition()
    await signals.run()
    assert len({event["id"] for event in signals.events_of()}) == len(signals.fired()) == 2


OUTCOMES = {
    # status before -> outcome of Create (the same), Create (another), Pause, Activate, Cancel, Resolve
    "none": ["created", "created", "not_found", "not_found", "not_found", "not_found"],
    "active": ["unchanged", "exists", "paused", "unchanged", "cancelled", "resolved"],
    "paused": ["unchanged", "exists", "unchanged", "activated", "cancelled", "resolved"],
    "fired": ["unchanged", "exists", "already_fired", "activated", "already_fired", "resolved"],
    "fired at its instant": ["exists", "exists", "already_fired", "already_fired", "already_fired", "resolved"],
    "cancelled": ["created", "created", "already_ended", "already_ended", "unchanged", "already_ended"],
    "resolved": ["created", "created", "already_ended", "already_ended", "already_ended", "unchanged"],
}
COMMANDS = ["Create", "Create another", "Pause", "Activate", "Cancel", "Resolve"]


async def bring_to(signals: SignalConversation, status: str, signal: str) -> None:
    match status:
        case "none":
            return
        case "fired at its instant":
            await signals.remind(iso(signals.now()), signal)
        case _:
            await signals.create(signal, f"item of {signal}")
    match status:
        case "fired":
            await signals.transition(item=f"item of {signal}")
        case "paused" | "cancelled" | "resolved":
            await signals.about({"paused": "Pause", "cancelled": "Cancel", "resolved": "Resolve"}[status], signal)
    await signals.run()


async def test_every_outcome(signals: SignalConversation) -> None:
    """Each command on a signal in each status has the outcome in the table of contracts/outcomes.md."""
    found: dict[str, list[str]] = {status: [] for status in OUTCOMES}
    for status in OUTCOMES:
        for name in COMMANDS:
            signal = f"{status}/{name}"
            await bring_to(signals, status, signal)
            match name:
                case "Create":
                    reply = await signals.create(signal, f"item of {signal}")
                case "Create another":
                    reply = await signals.create(signal, "another")
                case _:
                    reply = await signals.about(name, signal)
            found[status].append(reply["outcome"])
    assert found == OUTCOMES


async def test_reply_shows_the_signal(signals: SignalConversation) -> None:
    """A reply contains the signal in its new state, unless it is about a work item or an unknown signal."""
    created = await signals.create(note="mind the gap")
    moved = await signals.transition()
    unknown = await signals.about("Pause", "nobody")
    assert created["signal"] == {
        "tenantId": signals.tenant,
        "signalId": "signal-1",
        "status": "active",
        "triggerKind": "event",
        "triggerSpec": BLOCKED,
        "createdAt": created["signal"]["createdAt"],
        "workItemId": "item-1",
        "note": "mind the gap",
    }
    assert [set(each) for each in (moved, unknown)] == [{"commandId", "outcome"}] * 2
