"""What each command does to a schedule."""

from typing import Any, NamedTuple

from tests.harness.cases import case
from tests.harness.clock import NOW, after, iso
from timer_service.core.values.message import Command, Position, Trace
from timer_service.schedules import rules
from timer_service.schedules.messages import (
    DeleteSchedule,
    EndReason,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    SchedulePayload,
    Status,
    TriggerSchedule,
)
from timer_service.schedules.rules import Outcome
from timer_service.schedules.schedule import Key, Schedule, tombstone

KEY = Key("acme", "daily")
MINUTE = 60_000
EVERY = {"every": "PT1M"}
HOURLY = {"every": "PT1H"}
PAST = {**EVERY, "end_at": iso(NOW - MINUTE)}
PAYLOADS: dict[str, type[SchedulePayload]] = {
    "pause": PauseSchedule,
    "resume": ResumeSchedule,
    "delete": DeleteSchedule,
    "trigger": TriggerSchedule,
}


class Sent(NamedTuple):
    """A command at a place in the stream. It is stored as many minutes after `NOW`."""

    place: int
    verb: str
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def command(self) -> Command:
        fields: dict[str, Any] = {**KEY._asdict(), **self.fields}
        payload = PutSchedule(**fields) if self.verb == "put" else PAYLOADS[self.verb](**fields)
        stored_at = NOW + self.place * MINUTE
        return Command(f"command-{self.place}", payload, Position(1, self.place), None, Trace(), None, stored_at)


def put(place: int, **fields: Any) -> Sent:
    return Sent(place, "put", fields or EVERY)


def apply(schedule: Schedule | None, sent: Sent) -> tuple[Schedule, Outcome]:
    now = NOW + sent.place * MINUTE
    schedule, outcome = rules.apply(schedule or tombstone(KEY, now), sent.command, now)
    is_active = schedule.status is Status.ACTIVE
    assert (schedule.slot_at is not None, schedule.available_at is not None) == (is_active, is_active)
    return schedule, outcome


def after_all(*commands: Sent) -> Schedule:
    schedule: Schedule | None = None
    for each in commands:
        if each.verb != "trigger":
            schedule, _ = apply(schedule, each)
    assert schedule is not None
    return schedule


NONE: tuple[Sent, ...] = ()
ACTIVE = (put(1),)
PAUSED = (put(1), Sent(2, "pause"))
ENDED = (put(1, **PAST),)
DELETED = (put(1), Sent(2, "delete"))
REMEMBERED = (Sent(1, "pause"),)
OUTCOMES: dict[str, tuple[tuple[Sent, ...], Sent, Outcome, Status]] = {
    "put, none": (NONE, put(9), Outcome.CREATED, Status.ACTIVE),
    "put, deleted": (DELETED, put(9), Outcome.CREATED, Status.ACTIVE),
    "put, remembered pause": (REMEMBERED, put(9), Outcome.CREATED, Status.PAUSED),
    "put another, active": (ACTIVE, put(9, **HOURLY), Outcome.UPDATED, Status.ACTIVE),
    "put another, paused": (PAUSED, put(9, **HOURLY), Outcome.UPDATED, Status.PAUSED),
    "put another, ended": (ENDED, put(9, **HOURLY), Outcome.UPDATED, Status.ACTIVE),
    "put other data, ended": (ENDED, put(9, **PAST, data=1), Outcome.UPDATED, Status.ENDED),
    "put the same, active": (ACTIVE, put(9), Outcome.UNCHANGED, Status.ACTIVE),
    "put the same, paused": (PAUSED, put(9), Outcome.UNCHANGED, Status.PAUSED),
    "put the same, ended": (ENDED, put(9, **PAST), Outcome.UNCHANGED, Status.ENDED),
    "put without a slot, none": (NONE, put(9, **PAST), Outcome.ENDED, Status.ENDED),
    "put without a slot, active": (ACTIVE, put(9, **PAST), Outcome.ENDED, Status.ENDED),
    "put without a slot, paused": (PAUSED, put(9, **PAST), Outcome.ENDED, Status.ENDED),
    "put without a slot, deleted": (DELETED, put(9, **PAST), Outcome.ENDED, Status.ENDED),
    "pause, none": (NONE, Sent(9, "pause"), Outcome.NOT_FOUND, Status.DELETED),
    "pause, deleted": (DELETED, Sent(9, "pause"), Outcome.NOT_FOUND, Status.DELETED),
    "pause, active": (ACTIVE, Sent(9, "pause"), Outcome.PAUSED, Status.PAUSED),
    "pause, paused": (PAUSED, Sent(9, "pause"), Outcome.UNCHANGED, Status.PAUSED),
    "pause, ended": (ENDED, Sent(9, "pause"), Outcome.ALREADY_ENDED, Status.ENDED),
    "resume, none": (NONE, Sent(9, "resume"), Outcome.NOT_FOUND, Status.DELETED),
    "resume, deleted": (DELETED, Sent(9, "resume"), Outcome.NOT_FOUND, Status.DELETED),
    "resume, active": (ACTIVE, Sent(9, "resume"), Outcome.UNCHANGED, Status.ACTIVE),
    "resume, paused": (PAUSED, Sent(9, "resume"), Outcome.RESUMED, Status.ACTIVE),
    "resume, ended": (ENDED, Sent(9, "resume"), Outcome.ALREADY_ENDED, Status.ENDED),
    "delete, none": (NONE, Sent(9, "delete"), Outcome.NOT_FOUND, Status.DELETED),
    "delete, remembered pause": (REMEMBERED, Sent(9, "delete"), Outcome.NOT_FOUND, Status.DELETED),
    "delete, active": (ACTIVE, Sent(9, "delete"), Outcome.DELETED, Status.DELETED),
    "delete, paused": (PAUSED, Sent(9, "delete"), Outcome.DELETED, Status.DELETED),
    "delete, ended": (ENDED, Sent(9, "delete"), Outcome.DELETED, Status.DELETED),
    "delete, deleted": (DELETED, Sent(9, "delete"), Outcome.UNCHANGED, Status.DELETED),
    "trigger, none": (NONE, Sent(9, "trigger"), Outcome.NOT_FOUND, Status.DELETED),
    "trigger, deleted": (DELETED, Sent(9, "trigger"), Outcome.NOT_FOUND, Status.DELETED),
    "trigger, active": (ACTIVE, Sent(9, "trigger"), Outcome.TRIGGERED, Status.ACTIVE),
    "trigger, paused": (PAUSED, Sent(9, "trigger"), Outcome.TRIGGERED, Status.PAUSED),
    "trigger, ended": (ENDED, Sent(9, "trigger"), Outcome.TRIGGERED, Status.ENDED),
}


def before(commands: tuple[Sent, ...]) -> Schedule | None:
    return after_all(*commands) if commands else None


def test_outcomes() -> None:
    """Each command has the outcome of the table in contracts/outcomes.md, and leaves the status of that table."""
    for name, (history, sent, outcome, status) in OUTCOMES.items():
        with case(name):
            schedule, found = apply(before(history), sent)
            assert (found, schedule.status) == (outcome, status)


def test_command_that_is_published_again() -> None:
    """It ends as `unchanged` or as before, and changes neither the definition, the pause nor the slots."""
    again = {Outcome.NOT_FOUND, Outcome.ALREADY_ENDED, Outcome.TRIGGERED}
    for name, (history, sent, outcome, _) in OUTCOMES.items():
        with case(name):
            once, _ = apply(before(history), sent)
            twice, found = apply(once, sent._replace(place=sent.place + 1))
            assert twice._replace(defined_by=once.defined_by, confirmed_at=once.confirmed_at) == once
            assert found is (outcome if outcome in again else Outcome.UNCHANGED)


def test_each_put_on_an_ended_schedule() -> None:
    """Only a Put that starts the schedule again ends its end."""
    ended = after_all(put(1, **EVERY, max_count=1))._replace(
        slot_at=None, available_at=None, fired_count=1, ended_at=NOW, end_reason=EndReason.MAX_COUNT
    )
    found = {}
    cases: dict[str, dict[str, Any]] = {
        "same": {},
        "data": {"data": 1},
        "jitter": {"jitter": 1},
        "max_count": {"max_count": 2},
        "recurrence": HOURLY,
        "no slot": {"end_at": iso(NOW)},
    }
    for name, fields in cases.items():
        schedule, outcome = apply(ended, put(9, **{**EVERY, "max_count": 1, **fields}))
        found[name] = (str(outcome), str(schedule.status))
    assert found == {
        "same": ("unchanged", "ended"),
        "data": ("updated", "ended"),
        "jitter": ("updated", "ended"),
        "max_count": ("updated", "active"),
        "recurrence": ("updated", "active"),
        "no slot": ("ended", "ended"),
    }


def test_commands_that_are_handled_late() -> None:
    """A Resume and a Put drop no slot after their own command times. No slot fires again that fired before a Delete."""
    late = NOW + 9 * MINUTE
    resumed = rules.apply(after_all(*PAUSED), Sent(3, "resume").command, late).schedule
    assert (resumed.after_at, resumed.slot_at) == (NOW + 3 * MINUTE, NOW + 4 * MINUTE)
    fired = after_all(put(1))._replace(after_at=NOW + 5 * MINUTE, missed_since=NOW + 2 * MINUTE)
    moved = rules.apply(fired, put(3, every="PT2M").command, late).schedule
    assert (moved.after_at, moved.missed_since) == (NOW + 5 * MINUTE, None)
    ahead = fired._replace(after_at=late + 30 * MINUTE)  # the clock of the broker may be ahead by an hour
    assert rules.apply(ahead, put(3, every="PT2M").command, late).schedule.after_at == ahead.after_at
    again = rules.apply(apply(fired, Sent(2, "delete"))[0], put(3).command, late).schedule
    assert (again.slot_at, again.created_at, again.created_by) == (NOW + 6 * MINUTE, late, Position(1, 3))


def test_resume_after_the_last_slot() -> None:
    """A schedule whose last slot was in the pause ends when it is resumed."""
    paused = after_all(put(1, **EVERY, end_at=iso(after(minutes=5))), Sent(2, "pause"))
    schedule, outcome = apply(paused, Sent(9, "resume"))
    assert (outcome, schedule.status, schedule.end_reason) == (Outcome.RESUMED, Status.ENDED, EndReason.END_AT)


def test_retention_restarts_with_a_put_or_a_pause() -> None:
    """An ended schedule that is put again and again stays, and so does a pause that is remembered."""
    ended = after_all(put(1, **PAST))
    assert (ended.confirmed_at, apply(ended, put(5, **PAST))[0].confirmed_at) == (after(minutes=1), after(minutes=5))
    deleted = after_all(put(1), Sent(2, "delete"))
    paused, _ = apply(deleted, Sent(5, "pause"))
    assert (deleted.ended_at, deleted.confirmed_at) == (after(minutes=2), after(minutes=2))
    assert (paused.ended_at, paused.confirmed_at) == (after(minutes=2), after(minutes=5))
    assert apply(paused, put(6))[0].confirmed_at is None


def _in_the_jitter(**fields: Any) -> tuple[Schedule, int]:
    """Return an hourly schedule, and the minute after `NOW` at which a slot has begun and is not due yet."""
    schedule, _ = apply(None, put(1, every="PT1H", jitter="P1D", **fields))
    assert schedule.slot_at is not None
    assert schedule.available_at is not None
    minute = (schedule.slot_at - NOW) // MINUTE + 1
    assert schedule.available_at > NOW + (minute + 2) * MINUTE
    return schedule, minute


def test_command_in_the_jitter_keeps_the_slot() -> None:
    """A slot that has begun is due when it was before, whatever command comes before that."""
    before, at = _in_the_jitter()
    jitter = {"every": "PT1H", "jitter": "P1D"}
    pause, resume = Sent(at, "pause"), Sent(at + 1, "resume")
    for commands in (
        (pause, resume),
        (put(at, **jitter, max_count=3),),
        (put(at, **jitter, end_at=iso(NOW + at * MINUTE)),),
        (put(at, **jitter),),
        (pause, put(at + 1, **jitter, max_count=3), resume),
    ):
        schedule = before
        for each in commands:
            schedule, _ = apply(schedule, each)
        with case(*commands):
            assert (schedule.slot_at, schedule.available_at) == (before.slot_at, before.available_at)


def test_slot_that_is_due_in_a_pause() -> None:
    """A slot that is due while the schedule is paused does not fire."""
    before, at = _in_the_jitter()
    paused, _ = apply(before, Sent(at, "pause"))
    resumed, _ = apply(paused, Sent(at + 60, "resume"))
    assert before.slot_at is not None
    assert resumed.slot_at is not None
    assert resumed.slot_at > before.slot_at
