"""Compares the rows and the published events of schedules with the model of schedules."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.harness.clock import iso
from tests.simulation.backfill_model import BackfillModel, Ended, Span
from tests.simulation.schedule_model import (
    Facts,
    Firing,
    Progress,
    ScheduleModel,
    ScheduleName,
    Seen,
    read_definition,
)
from tests.simulation.service import Row, SentCommand, Service
from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import Command, Position

_LONGEST_WAIT_MS = 60_000


class ExpectedEvent(NamedTuple):
    """An event that must be published."""

    type: str
    payload: Mapping[str, Any]
    topic: str | None = None


class SchedulesChecker:
    """Applies commands and passes to the model of schedules, and compares the service with it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._schedules: dict[ScheduleName, ScheduleModel] = {}
        self._expected: dict[str, list[ExpectedEvent]] = {}
        """The events that must be published, by their ids. Of a slot that was also backfilled, one of several."""
        self._fired: set[str] = set()
        """The ids of the slots that have fired, without backfills."""
        self._backfills: dict[Position, BackfillModel] = {}
        """The backfills that have not ended."""
        self._backlog: frozenset[str] = frozenset()
        self._backlog_since = 0, 0
        self._held_back: object = None
        """The instances that hold slots back since then."""

    # Commits of the service

    def command(self, sent: SentCommand, command: Command, now: int, sent_at: int) -> str:
        """Apply one command to the model and return its outcome."""
        name, position = ScheduleName(sent.tenant, sent.fields["scheduleId"]), command.position
        if sent.type == "BackfillSchedule":
            return self._backfill(name, sent, command, sent_at)
        if sent.type == "TriggerSchedule":
            return self._trigger(name, sent, position, now, sent_at)
        schedule = self._schedules.setdefault(name, ScheduleModel(name))
        definition = read_definition(sent.payload) if sent.type == "PutSchedule" else None
        starts, ended = schedule.starts, schedule.status == "ended"
        outcome = schedule.command(Seen(position, sent.type, sent_at, definition))
        if schedule.status == "ended" and not (ended and schedule.starts == starts):
            self._expect_end(schedule)
        return outcome

    def _expect_end(self, schedule: ScheduleModel) -> None:
        name = schedule.name
        payload = {"tenantId": name.tenant, "scheduleId": name.schedule, "reason": schedule.progress.end}
        self._expect(_event_id(name, "ended", *schedule.facts.defined_by), "ScheduleEnded", payload)

    def _trigger(self, name: ScheduleName, sent: SentCommand, position: Position, now: int, sent_at: int) -> str:
        definition = self._schedules[name].facts.definition if name in self._schedules else None
        if definition is None:
            return "not_found"
        data = json.dumps(sent.fields["data"]) if "data" in sent.fields else definition.data
        payload = _fired(name, "trigger", sent_at, now, data)
        self._expect(_event_id(name, "trigger", *position), "ScheduleFired", payload, definition.topic)
        return "triggered"

    def _backfill(self, name: ScheduleName, sent: SentCommand, command: Command, sent_at: int) -> str:
        facts = self._schedules[name].facts if name in self._schedules else Facts()
        if facts.definition is None:
            return "not_found"
        since, until = parse_instant(sent.fields["from"]), min(parse_instant(sent.fields["to"]), sent_at)
        if since >= until:
            return "nothing_due"
        span = Span(since, until, sent.fields["limit"])
        self._backfills[command.position] = BackfillModel(
            name, command.position, command.id, facts.definition, span, since - 1
        )
        return "backfilling"

    def _expect(self, event_id: str, message_type: str, payload: Mapping[str, Any], topic: str | None = None) -> None:
        self._expected.setdefault(event_id, []).append(ExpectedEvent(message_type, payload, topic))

    def portions_committed(self, began_at: int) -> None:
        """Apply the portions of backfills of a pass that began at an instant."""
        rows = self._backfill_rows()
        for position, backfill in list(self._backfills.items()):
            if (row := rows.get(position)) is None:
                del self._backfills[position]
                self._end_backfill(backfill, began_at)
            elif row["after_at"] != backfill.after:
                assert not self._is_deleted(backfill), f"{backfill} goes on after a Delete"
                self._expect_backfilled(backfill, backfill.portion(row["after_at"], began_at), began_at)

    def _end_backfill(self, backfill: BackfillModel, now: int) -> None:
        end = Ended((), "deleted") if self._is_deleted(backfill) else backfill.end(now)
        self._expect_backfilled(backfill, end.slots, now)
        payload = {
            "tenantId": backfill.name.tenant,
            "scheduleId": backfill.name.schedule,
            "commandId": backfill.command_id,
            "from": iso(backfill.span.since),
            "to": iso(backfill.span.until),
            "count": backfill.count + len(end.slots),
            "skipped": 0,
            "reason": end.reason,
            **({} if end.next_slot is None else {"nextSlotAt": iso(end.next_slot)}),
        }
        self._expect(_event_id(backfill.name, "backfilled", *backfill.position), "ScheduleBackfilled", payload)

    def _is_deleted(self, backfill: BackfillModel) -> bool:
        facts = self._schedules[backfill.name].facts
        return facts.definition is None or facts.created_by > backfill.position

    def _expect_backfilled(self, backfill: BackfillModel, slots: Sequence[int], now: int) -> None:
        assert not slots or not self._is_held_back(now), f"{slots} fired before older commands were handled"
        for slot in slots:
            payload = _fired(backfill.name, "backfill", slot, now, backfill.definition.data)
            event_id = _event_id(backfill.name, "slot", slot)
            self._expect(event_id, "ScheduleFired", payload, backfill.definition.topic)

    def pass_committed(self, began_at: int) -> None:
        """Apply a pass that began at an instant. Assert that the policy fires what it fired."""
        rows = self._rows()
        for name, schedule in self._remembered().items():
            if rows[name]["after_at"] != schedule.progress.after:
                self._apply_firing(schedule, rows[name], began_at)

    def _apply_firing(self, schedule: ScheduleModel, row: Row, now: int) -> None:
        possible = {each.progress.after: each for each in schedule.possible_firings(now)}
        assert row["after_at"] in possible, f"{schedule} fired up to {row}, not {list(possible.values())}"
        firing = possible[row["after_at"]]
        assert not self._is_held_back(now), (
            f"{firing.slots} of {schedule.name} fired before older commands were handled"
        )
        self._expect_slots(schedule, firing, now)
        schedule.fire(firing)
        if schedule.status == "ended":
            self._expect_end(schedule)

    def _expect_slots(self, schedule: ScheduleModel, firing: Firing, now: int) -> None:
        assert schedule.facts.definition is not None
        missed_since = firing.missed_since
        for slot in firing.slots:
            event_id = _event_id(schedule.name, "slot", slot)
            assert event_id not in self._fired, f"{slot} of {schedule.name} fired twice"
            self._fired.add(event_id)
            payload = _fired(schedule.name, "slot", slot, now, schedule.facts.definition.data)
            if missed_since is not None:
                payload["missedSince"] = iso(missed_since)
            self._expect(event_id, "ScheduleFired", payload, schedule.facts.definition.topic)
            missed_since = None

    @contextmanager
    def new_rules(self) -> Iterator[None]:
        """Expect that the schedules follow the rules of zones that are in force after the block."""
        for each in self._schedules.values():
            each.remember_slots()
        yield
        active = [each for each in self._schedules.values() if each.status == "active"]
        for each in active:
            each.follow_rules()
            if each.status == "ended":
                self._expect_end(each)

    # The backlog

    def hold_back(self) -> None:
        """Expect that nothing fires before the commands that are stored now are handled, for at most a minute.

        The minute is that of the process: what an instance has waited for earlier commands counts after an outage of
        the broker too, unless it has seen in between that they were handled, which the model does not know.
        """
        if self._service.instances is not self._held_back:
            self._backlog_since = self._service.clock.now(), self._service.clock.set_back_ms
        self._held_back, self._backlog = self._service.instances, self._service.ledger.unapplied

    def _is_held_back(self, now: int) -> bool:
        since, set_back_ms = self._backlog_since
        waited = now - since >= _LONGEST_WAIT_MS or self._service.clock.set_back_ms != set_back_ms
        return not waited and not self._backlog.isdisjoint(self._service.backlog())

    # Comparisons

    def check(self) -> None:
        """Assert that the tables equal the model."""
        rows = self._rows()
        assert rows.keys() == self._remembered().keys()
        for name, schedule in self._remembered().items():
            _check_facts(schedule.facts, rows[name])
            assert rows[name]["status"] == schedule.status, (
                f"{schedule} is {rows[name]['status']}, not {schedule.status}"
            )
            _check_progress(schedule.progress, rows[name])
            clock = self._service.clock
            _check_next(schedule, rows[name], clock.now() + clock.set_back_ms)
        found = {position: (row["after_at"], row["fired_count"]) for position, row in self._backfill_rows().items()}
        assert found == {position: (each.after, each.count) for position, each in self._backfills.items()}

    def check_idle(self) -> None:
        """Assert that the table equals the model, and that no slot is due."""
        self.check()
        now = self._service.clock.now()
        assert not [each for each in self._schedules.values() if each.is_due(now)], "slots did not fire"

    def next_due(self) -> int | None:
        """Return when the next slot is due."""
        slots = ((each, each.next_slot) for each in self._schedules.values())
        return min((each.due_of(slot) for each, slot in slots if slot is not None), default=None)

    def check_events(self) -> None:
        """Assert that exactly the expected events were published, each once and with its own id.

        No backfill is left then.
        """
        assert not self._backfills, "backfills did not end"
        types = {"ScheduleFired", "ScheduleEnded", "ScheduleBackfilled"}
        events = [each for each in self._service.events() if each["type"] in types]
        found = {event["id"]: ExpectedEvent(event["type"], event["payload"], event.get("topic")) for event in events}
        assert len(found) == len(events)
        missing = self._expected.keys() - found.keys()
        assert not missing, f"not published: {[self._expected[each] for each in missing]}"
        for event_id, event in found.items():
            wanted = self._expected.get(event_id, [])
            assert event in wanted, f"published {event}, not one of {wanted}"

    def check_deleted(self) -> None:
        """Assert that retention deleted the ended schedules and the tombstones, and no others."""
        live = {name for name, each in self._schedules.items() if each.status in {"active", "paused"}}
        assert self._rows().keys() == live

    def _remembered(self) -> dict[ScheduleName, ScheduleModel]:
        return {name: each for name, each in self._schedules.items() if each.is_known}

    def _rows(self) -> dict[ScheduleName, Row]:
        return {ScheduleName(row["tenant_id"], row["schedule_id"]): row for row in self._service.rows("schedules")}

    def _backfill_rows(self) -> dict[Position, Row]:
        rows = self._service.rows("schedule_backfills")
        return {Position(row["position_epoch"], row["position_sequence"]): row for row in rows}


def _days(calendar: str | None) -> tuple[int, str] | None:
    """Return what a row stores of a calendar interval, as in the model."""
    if calendar is None:
        return None
    every, unit, anchor = json.loads(calendar)
    return every * {"days": 1, "weeks": 7}[unit], anchor


def _check_facts(facts: Facts, row: Row) -> None:
    wanted: Sequence[Any] = (None,) * 13
    if (definition := facts.definition) is not None:
        recurrence, max_count, jitter, policy, late_by, limit, data, topic = definition
        data = None if data is None else json.loads(data)
        wanted = (*recurrence, max_count, jitter, policy, late_by, limit, data, topic)
    found = [
        *(row["cron"], row["every_ms"], _days(row["calendar"])),
        *(row[name] for name in ("zone", "start_at", "end_at", "max_count", "jitter_ms")),
        *(row[name] for name in ("catch_up", "late_by_ms", "catch_up_limit")),
        None if row["data"] is None else json.loads(row["data"]),
        row["topic"],
    ]
    assert found == list(wanted), f"the definition is {found}, not {wanted}"
    assert bool(row["is_paused"]) == facts.is_paused, f"is_paused is {row['is_paused']}: {facts}"
    for name, position in (("created", facts.created_by), ("defined", facts.defined_by)):
        assert Position(row[f"{name}_epoch"], row[f"{name}_sequence"]) == position, f"{name} is wrong: {facts}"


def _check_progress(progress: Progress, row: Row) -> None:
    names = ("after_at", "fired_count", "missed_since", "last_slot_at", "last_fired_at", "end_reason")
    found = tuple(row[name] for name in names)
    assert found == progress[: len(names)], f"the progress is {found}, not {progress}"


def _check_next(schedule: ScheduleModel, row: Row, now: int) -> None:
    """Assert that the next slot waits until it is due, or if a pass has left it, since that pass at most."""
    slot = schedule.next_slot
    found = (row["slot_at"], row["available_at"])
    if slot is None:
        assert found == (None, None), f"there is no slot, but {found}: {schedule}"
        return
    due = schedule.due_of(slot)
    assert row["slot_at"] == slot, f"the next slot is {found}, not {slot}: {schedule}"
    assert due <= row["available_at"] <= max(due, now), f"the next slot is {found}, due at {due}: {schedule}"


def _fired(name: ScheduleName, cause: str, slot: int, now: int, data: str | None) -> dict[str, Any]:
    fields = {"tenantId": name.tenant, "scheduleId": name.schedule, "slotAt": iso(slot), "firedAt": iso(now)}
    return {**fields, "cause": cause, **({} if data is None else {"data": json.loads(data)})}


def _event_id(name: ScheduleName, *about: object) -> str:
    """Return the id of an event. It depends on nothing but the schedule and the cause of the event."""
    text = "\0".join((*name, *map(str, about)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
