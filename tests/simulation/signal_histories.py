"""Draws commands on few signals, work items and statuses, so that many commands are about the same one."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from tests.harness.clock import after, iso
from tests.simulation.service import SentCommand

_SIGNALS, _STATUSES = ["s00", "s00", "s00", "s00", "s01"], ["blocked", "blocked", "open", "Done "]
_MANY = 34

_TRIGGERS: list[Mapping[str, Any]] = [
    {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}},
    {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked", "done"]}},
    {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(after(seconds=30))}},
    {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(after(seconds=-30))}},
    {"triggerKind": "event", "triggerSpec": {"kind": "no such kind"}},
]
_triggers = st.sampled_from([*_TRIGGERS[:2] * 4, *_TRIGGERS])
_items = st.sampled_from(["i1", "i1", "i2"])


@st.composite
def _definitions(draw: st.DrawFn, *, alike: bool) -> Mapping[str, Any]:
    fields = dict(_TRIGGERS[0] if alike else draw(_triggers))
    if fields["triggerKind"] == "event" or draw(st.booleans()):
        fields["workItemId"] = draw(_items)
    return fields


_VERBS = ["Pause", "Activate", "Cancel", "Resolve"]
_KINDS = ["create"] * 3 + ["transition"] * 3 + [*_VERBS, "Pause", "Activate", "Resolve", "item"]


@st.composite
def signal_commands(draw: st.DrawFn, most: int = 10) -> list[SentCommand]:
    """Draw commands in the order of the log. `most` limits their number.

    Half of the histories have only one signal, and every transition of its work item matches.
    """
    history: list[SentCommand] = []
    alike = draw(st.booleans())
    signals = st.sampled_from(_SIGNALS[:1] if alike else _SIGNALS)
    statuses = st.sampled_from(_STATUSES[:1] if alike else _STATUSES)
    for _ in range(draw(st.sampled_from([1, 2, 3, 5, most, most, most]))):
        kind = draw(st.sampled_from(_KINDS))
        match kind:
            case "create":
                fields = {"signalId": draw(signals), **draw(_definitions(alike=alike))}
                history.append(SentCommand("CreateWorkSignal", "acme", fields))
            case "transition":
                fields = {"workItemId": draw(_items), "eventId": f"e{draw(st.integers(1, 2))}", "to": draw(statuses)}
                history.append(SentCommand("TransitionWorkItem", "acme", fields))
            case "item":
                fields = {"workItemId": draw(_items), "status": draw(statuses)}
                history.append(SentCommand("CreateWorkItem", "acme", fields))
            case verb:
                history.append(SentCommand(f"{verb}WorkSignal", "acme", {"signalId": draw(signals)}))
    return history


@st.composite
def recreated_signals(draw: st.DrawFn) -> list[SentCommand]:
    """Draw commands that create one signal and move its work item, two or three times. In between, the signal ends."""
    history: list[SentCommand] = []
    for _ in range(draw(st.integers(2, 3))):
        item, ends = {"workItemId": draw(_items)}, draw(st.sampled_from(["Resolve", "Resolve", "Cancel"]))
        moved = {**item, "eventId": f"e{draw(st.integers(1, 2))}", "to": "blocked"}
        history.append(SentCommand("CreateWorkSignal", "acme", {"signalId": "s00", **item, **_TRIGGERS[0]}))
        history.append(SentCommand("TransitionWorkItem", "acme", moved))
        history.append(SentCommand(f"{ends}WorkSignal", "acme", {"signalId": "s00"}))
    return history[:-1]


def many_signals() -> list[SentCommand]:
    """Return the commands that create more signals of one work item than a transition evaluates inline."""
    return [
        SentCommand("CreateWorkSignal", "acme", {"signalId": f"s{number:02}", "workItemId": "i1", **_TRIGGERS[0]})
        for number in range(_MANY)
    ]
