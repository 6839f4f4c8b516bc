"""What the service promises, in its plainest form: the outcome table, and what a row may turn into and when."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from timer_service.core.message import Position

SCHEDULED, REACHED, CANCELLED, FAILED = "Scheduled", "Reached", "Cancelled", "Failed"


class Name(NamedTuple):
    """Which timer."""

    tenant: str
    call: str


class Sent(NamedTuple):
    """A command as its sender knows it; without a name it is one that can't be read."""

    type: str
    name: Name | None
    body: bytes
    due_at: int | None = None
    data: str | None = None
    """As JSON text."""


class Row(NamedTuple):
    """A timer in the database."""

    position: Position
    state: str
    due_at: int | None
    data: str | None
    event_id: str | None
    available_at: int | None
    lease_token: str | None
    attempt: int


Rows = Mapping[Name, Row]


class Fire(NamedTuple):
    """What an event id stands for."""

    name: Name
    due_at: int
    data: str | None


@dataclass(slots=True)
class Timer:
    """A timer as commands and relays left it; without a due time it is a tombstone."""

    state: str
    position: Position
    due_at: int | None
    data: str | None = None
    claims: int = 0
    """Since it was last accepted or put back."""


@dataclass(slots=True)
class Model:
    """All timers; every method raises `AssertionError` when the service did what it must not."""

    max_attempts: int
    timers: dict[Name, Timer] = field(default_factory=dict)
    fires: dict[str, Fire] = field(default_factory=dict)
    """Accepted schedules by the id of their event."""
    claimed: set[str] = field(default_factory=set)
    """Ids of schedules that were claimed; no other may ever be published."""
    stored: set[str] = field(default_factory=set)
    """Ids of events that the broker has."""
    outcomes: Counter[str] = field(default_factory=Counter)
    accepted: set[Name] = field(default_factory=set)
    """Timers that the transaction under way gave a new schedule."""
    ended: set[Name] = field(default_factory=set)
    """Timers that it changed otherwise."""

    # Commands

    def command(self, sent: Sent, position: Position) -> str:
        """Apply a command; return its outcome."""
        assert sent.name is not None, f"{sent} was accepted"
        timer = self.timers.get(sent.name)
        outcome = self._decide(sent, timer, position)
        self.outcomes[outcome] += 1
        return outcome

    def _decide(self, sent: Sent, timer: Timer | None, position: Position) -> str:
        if timer is not None and timer.position > position:
            return "ignored_stale"
        if sent.type == "RetryTimer" and (timer is None or timer.due_at is None):
            return "not_found"
        if timer is not None and timer.state == REACHED:
            timer.position = position
            return "ignored_reached" if sent.type == "ScheduleTimer" else "already_reached"
        match sent.type:
            case "ScheduleTimer":
                return self._schedule(sent, timer, position)
            case "CancelTimer":
                return self._cancel(sent, timer, position)
            case _:
                return self._retry(sent, timer, position)

    def _schedule(self, sent: Sent, timer: Timer | None, position: Position) -> str:
        assert sent.name is not None
        wanted = SCHEDULED, sent.due_at, sent.data
        if timer is not None and (timer.position == position or (timer.state, timer.due_at, timer.data) == wanted):
            timer.position = position
            return "unchanged"
        self.timers[sent.name] = Timer(SCHEDULED, position, sent.due_at, sent.data)
        self.accepted.add(sent.name)
        if timer is None or timer.state != SCHEDULED:
            return "scheduled"
        return "updated" if timer.due_at == sent.due_at else "rescheduled"

    def _cancel(self, sent: Sent, timer: Timer | None, position: Position) -> str:
        assert sent.name is not None
        if timer is None:
            self.timers[sent.name] = Timer(CANCELLED, position, None)
            return "not_found"
        timer.position = position
        if timer.state == CANCELLED:
            return "unchanged"
        timer.state = CANCELLED
        self.ended.add(sent.name)
        return "cancelled"

    def _retry(self, sent: Sent, timer: Timer | None, position: Position) -> str:
        assert sent.name is not None
        assert timer is not None
        again = timer.position == position
        timer.position = position
        if timer.state != FAILED or again:
            return "unchanged"
        timer.state, timer.claims = SCHEDULED, 0
        self.ended.add(sent.name)
        return "retried"

    def commands_committed(self, before: Rows, after: Rows) -> None:
        """Compare with the database after commands; learn the ids of the schedules that were accepted."""
        self.agrees(after)
        for name in self.accepted:
            self._accept(name, after[name])
        for name, row in after.items():
            if name in self.accepted | self.ended:
                assert row.lease_token is None, f"{name} was changed, and its claim goes on: {row}"
                assert row.state != SCHEDULED or row.attempt == 0, f"{name} begins with attempts spent: {row}"
            elif name in before:
                assert row._replace(position=before[name].position) == before[name], f"{name} was only confirmed"
        self.accepted.clear()
        self.ended.clear()

    def _accept(self, name: Name, row: Row) -> None:
        assert row.event_id is not None, f"{name} has nothing to fire: {row}"
        assert row.event_id not in self.fires, f"one id for {self.fires[row.event_id]} and for {name}: {row}"
        self.fires[row.event_id] = Fire(name, row.due_at or 0, row.data)

    def agrees(self, rows: Rows) -> None:
        """Check that the newest position has won everywhere, and that nothing is there that was not asked for."""
        wanted = {name: (timer.state, timer.position, timer.due_at, timer.data) for name, timer in self.timers.items()}
        found = {name: (row.state, row.position, row.due_at, row.data) for name, row in rows.items()}
        assert found == wanted, f"the database has {found}, not {wanted}"

    # Relays

    def leases_committed(self, before: Rows, after: Rows, tokens: Collection[str], now: int) -> None:
        """Check what one transaction of a relay did to rows, given the leases it named."""
        for name, row in after.items():
            old = before[name]
            if row != old:
                assert old.state == SCHEDULED, f"{name} was settled already: {old} -> {row}"
                settling = {"state", "available_at", "lease_token", "attempt"}
                assert all(getattr(row, each) == getattr(old, each) for each in {*Row._fields} - settling), row
                if row.lease_token in tokens:
                    self._claim(name, old, row, now)
                else:
                    assert old.lease_token in tokens, f"{name} is held by another claim: {old} -> {row}"
                    self._settle(name, row)
        self.agrees(after)

    def _claim(self, name: Name, old: Row, row: Row, now: int) -> None:
        assert old.available_at is not None, f"{name} was claimed, but it is settled"
        assert old.available_at <= now, f"{name} was claimed at {now}, before it was available: {old}"
        assert row.attempt == old.attempt + 1, f"{name}: a claim is an attempt"
        self.timers[name].claims += 1
        self.claimed.add(row.event_id or "")

    def _settle(self, name: Name, row: Row) -> None:
        timer = self.timers[name]
        match row.state:
            case "Reached":
                assert row.event_id in self.stored, f"{name} is Reached, but its event was never stored: {row}"
            case "Failed":
                assert timer.claims >= self.max_attempts, f"{name} was given up after {timer.claims} attempts"
            case state:
                assert state == SCHEDULED, f"{name}: a relay does not cancel"
        timer.state = row.state

    def recovered(self, before: Rows, after: Rows, now: int) -> None:
        """Check that a process that is alone only ended the leases of its dead predecessor."""
        for name, row in after.items():
            if row != before[name]:
                assert before[name].lease_token is not None, f"{name} was not held: {before[name]} -> {row}"
                assert row == before[name]._replace(lease_token=None, available_at=row.available_at)
                assert row.available_at is not None
                assert row.available_at <= now, f"{name} waits for nobody: {row}"
        self.agrees(after)

    # Events

    def event(self, event_id: str, fire: Fire, now: int) -> None:
        """Check an event that the broker has stored now."""
        assert event_id in self.fires, f"{event_id} for {fire} names no accepted schedule"
        assert self.fires[event_id] == fire, f"{event_id} names {self.fires[event_id]} and {fire}"
        assert fire.due_at <= now, f"{fire} was fired early, at {now}"
        assert event_id in self.claimed, f"{fire} was fired, but cancelled or replaced before it was ever claimed"
        self.stored.add(event_id)

    def finished(self, rows: Rows) -> None:
        """Check that nothing is left to do, once everything is well again."""
        self.agrees(rows)
        for name, row in rows.items():
            assert row.lease_token is None, f"{name} is still leased"
            assert row.state != SCHEDULED, f"{name} was lost: {row}"
            assert row.state != REACHED or row.event_id in self.stored, f"the event of {name} was lost: {row}"
