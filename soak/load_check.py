"""The check of a load against a plain model: nothing lost, nothing early, one outcome for each command, stable ids."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from soak.load import DIAMOND, Load
from tests.harness.load_user import SeenEvent, Sent

_IMPOSSIBLE = {"rejected"}
"""Outcomes of no command of a load: all are valid, and those of a tenant are handled in their order."""
_VARYING = ("reachedAt", "firedAt", "readyAt", "completedAt")
"""Fields that may differ if an event is published again."""


async def check_load(load: Load, *, seconds: float = 60, all_replied: bool = True) -> str:
    """Stop a load, wait until its work is done, and assert that it was done right. Return a summary.

    `all_replied`: every command must have a reply. Replies are lost if the service is killed after a commit, or if the
    connection of the service or of the user is lost.
    Raises an `AssertionError` that lists what is still missing after `seconds`, or what is wrong.
    """
    await load.stop(seconds=seconds)
    deadline = time.monotonic() + seconds
    await load.user.until_handled(seconds=seconds)
    while missing := list(_missing(load, all_replied=all_replied)):
        wrong = list(_wrong(load))
        assert not wrong, _listed("wrong", wrong)
        assert time.monotonic() < deadline, _listed(f"missing after {seconds} s", missing)
        await asyncio.sleep(0.1)
    wrong = list(_wrong(load))
    assert not wrong, _listed("wrong", wrong)
    assert await load.user.count_dead_letters() == 0
    return summary(load)


def summary(load: Load) -> str:
    """Return the size of a load, the duplicates, and how long commands had to wait.

    The pause is the longest time in which no command was answered.
    """
    events = load.user.events
    answered = [each for each in load.user.sent if each.replies]
    pause = max((later - earlier for earlier, later in pairwise(sorted(map(_answered_ms, answered)))), default=0)
    slowest = max((_answered_ms(each) - each.stored_ms for each in answered), default=0)
    return (
        f"{len(load.user.sent)} commands ({len(load.timers)} timers, {len(load.signals)} signals, "
        f"{len(load.runs)} runs): 0 lost, 0 early, {len(events) - len({each.id for each in events})} duplicates, "
        f"longest pause {pause / 1000:.2f} s, slowest command {slowest / 1000:.2f} s"
    )


def _answered_ms(sent: Sent) -> float:
    return sent.replies[0].at_ms


def _listed(what: str, faults: list[str]) -> str:
    return f"{len(faults)} {what}: " + "; ".join(faults[:10])


def _missing(load: Load, *, all_replied: bool) -> Iterator[str]:
    """Yield what must still happen."""
    found = _events_by_subject(load)
    for call, commands in load.timers.items():
        yield from _missing_of_timer(call, commands, found["DueTimeReached", call])
    for signal, commands in load.signals.items():
        if _must_fire(commands) and not found["work.signal.fired", signal]:
            yield f"{signal} did not fire"
    for run in load.runs:
        if not found["RunCompleted", run]:
            ready = {each.payload["jobName"] for each in found["JobReady", run]}
            yield f"{run} is not completed; jobs ready: {sorted(ready)}"
    if all_replied:
        for sent in load.user.sent:
            if not sent.replies:
                yield f"no reply to {sent.type} {sent.sequence}"


def _missing_of_timer(call: str, commands: list[Sent], fired: list[SeenEvent]) -> Iterator[str]:
    decisive = [each for each in commands if each.type != "RetryTimer"]
    last = decisive[-1]
    if last.type == "CancelTimer" or any(each.payload["dueAt"] == _due(last) for each in fired):
        return
    earlier_fired_first = fired and ("ignored_reached" in last.outcomes or not last.replies)
    if not earlier_fired_first:
        yield f"{call} did not fire at {last.payload['dueAt']}; outcomes {[each.outcomes for each in commands]}"


def _wrong(load: Load) -> Iterator[str]:
    """Yield what must not have happened."""
    found = _events_by_subject(load)
    yield from _wrong_ids(load.user.events)
    for sent in load.user.sent:
        yield from _wrong_outcomes(sent)
    for call, commands in load.timers.items():
        yield from _wrong_of_timer(call, commands, found["DueTimeReached", call])
    for signal, commands in load.signals.items():
        yield from _wrong_of_signal(signal, commands, found["work.signal.fired", signal])
    for run in load.runs:
        yield from _wrong_of_run(load, run, found["JobReady", run], found["RunCompleted", run])


def _wrong_ids(events: list[SeenEvent]) -> Iterator[str]:
    contents: dict[str, Mapping[str, Any]] = {}
    for each in events:
        content = {name: value for name, value in each.payload.items() if name not in _VARYING}
        if contents.setdefault(each.id, content) != content:
            yield f"the id {each.id} stands for {contents[each.id]} and {content}"


def _wrong_outcomes(sent: Sent) -> Iterator[str]:
    named = f"{sent.type} {sent.sequence}: {sent.outcomes}"
    for outcome in _IMPOSSIBLE.intersection(sent.outcomes):
        yield f"{named}: {outcome}"
    if len(sent.outcomes) > 1:
        yield f"{named}: handled more than once"


def _wrong_of_timer(call: str, commands: list[Sent], fired: list[SeenEvent]) -> Iterator[str]:
    ids: dict[str, str] = {}
    dues = {each.payload["dueAt"]: each for each in fired}
    wanted = _dues(commands)
    for each in fired:
        due = each.payload["dueAt"]
        if due not in wanted:
            yield f"{call} fired at {due}, which nobody asked for"
        if each.stored_ms < _ms(due):
            yield f"{call} fired {_ms(due) - each.stored_ms:.0f} ms early"
        if ids.setdefault(due, each.id) != each.id:
            yield f"{call} has two event ids for {due}"
    for index, cancel in enumerate(commands):
        acknowledged = min((each.at_ms for each in cancel.replies if each.outcome == "cancelled"), default=None)
        for due in _dues(commands[:index]) - _dues(commands[index:]):  # a later command may ask for the same due time
            if cancel.type == "CancelTimer" and acknowledged and acknowledged < _ms(due) and due in dues:
                yield (
                    f"{call} fired at {due} although its cancel was acknowledged before; "
                    f"{[(each.type, each.payload.get('dueAt'), each.sequence, each.outcomes) for each in commands]}"
                )


def _wrong_of_signal(signal: str, commands: list[Sent], fired: list[SeenEvent]) -> Iterator[str]:
    if len({each.id for each in fired}) > 1:
        yield f"{signal} fired more than once"
    if fired and _was_cancelled(commands):
        yield f"{signal} fired although its cancel was acknowledged before the transition"
    spec = commands[0].payload["triggerSpec"] if commands else {}
    for each in fired:
        if "at" in spec and each.stored_ms < _ms(spec["at"]):
            yield f"{signal} fired early"


def _wrong_of_run(load: Load, run: str, ready: list[SeenEvent], completed: list[SeenEvent]) -> Iterator[str]:
    ids: dict[str, str] = {}
    for each in ready:
        job = each.payload["jobName"]
        if ids.setdefault(job, each.id) != each.id:
            yield f"{run}: {job} has two JobReady ids"
        for need in DIAMOND[job]:
            report = load.reports.get((run, need))
            if report is None or each.stored_ms < report.begun_ms:
                yield f"{run}: {job} was ready before {need} was reported"
    if len({each.id for each in completed}) > 1 or any(each.payload["status"] != "success" for each in completed):
        yield f"{run} completed {[each.payload['status'] for each in completed]}"


def _must_fire(commands: list[Sent]) -> bool:
    return bool(commands) and all(each.type != "CancelWorkSignal" for each in commands)


def _was_cancelled(commands: list[Sent]) -> bool:
    """Return whether the signal was cancelled, and the user knew it before the transition."""
    cancels = [(index, each) for index, each in enumerate(commands) if each.type == "CancelWorkSignal"]
    return any(
        reply.outcome == "cancelled" and all(reply.at_ms < later.begun_ms for later in commands[index + 1 :])
        for index, cancel in cancels
        for reply in cancel.replies
    )


def _events_by_subject(load: Load) -> defaultdict[tuple[str, str], list[SeenEvent]]:
    """Return the events by their type and the timer, signal or run that they are about."""
    found: defaultdict[tuple[str, str], list[SeenEvent]] = defaultdict(list)
    for each in load.user.events:
        names = (each.payload.get(name) for name in ("serviceCallId", "signalId", "runId"))
        found[each.type, next(filter(None, names))].append(each)
    return found


def _dues(commands: list[Sent]) -> set[str]:
    return {_due(each) for each in commands if each.type == "ScheduleTimer"}


def _due(sent: Sent) -> str:
    """Return the due time of a schedule as the events show it."""
    return str(sent.payload["dueAt"])


def _ms(due: str) -> float:
    return datetime.fromisoformat(due).timestamp() * 1000
