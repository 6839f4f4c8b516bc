"""A simple model of timers: the outcome of each command, and which changes of a row are allowed."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from timer_service.core.values.message import Position
from timer_service.timers.events import expired_event_id

SCHEDULED, REACHED, EXPIRED, CANCELLED, FAILED = "Scheduled", "Reached", "Expired", "Cancelled", "Failed"


class TimerName(NamedTuple):
    """The key of a timer."""

    tenant: str
    call: str


class TimerCommand(NamedTuple):
    """A command as it was sent. An invalid command has no `name`."""

    type: str
    name: TimerName | None
    body: bytes
    due_at: int | None = None
    data: str | None = None
    """The data of the timer as JSON text."""
    expires_at: int | None = None
    topic: str | None = None


class Row(NamedTuple):
    """A row of a timer."""

    position: Position
    state: str
    due_at: int | None
    data: str | None
    event_id: str | None
    available_at: int | None
    lease_token: str | None
    attempt: int
    expires_at: int | None
    topic: str | None
    settled_at: int | None


Rows = Mapping[TimerName, Row]


class Fire(NamedTuple):
    """The content of an event."""

    name: TimerName
    due_at: int
    data: str | None
    topic: str | None


class Scheduled(NamedTuple):
    """What an accepted schedule announces: the content, and from when on as expired."""

    fire: Fire
    expires_at: int | None


@dataclass(slots=True)
class Timer:
    """The expected state of a timer."""

    state: str
    position: Position
    due_at: int | None
    data: str | None = None
    expires_at: int | None = None
    topic: str | None = None
    claims: int = 0
    """The number of claims since the last accepted schedule or retry."""


@dataclass(slots=True)
class TimersModel:
    """All timers. Every method raises `AssertionError` if the service broke a guarantee."""

    max_attempts: int
    timers: dict[TimerName, Timer] = field(default_factory=dict)
    fires: dict[str, Scheduled] = field(default_factory=dict)
    """The event of each accepted schedule, by event id."""
    claimed: set[str] = field(default_factory=set)
    """The event ids of claimed schedules. Only these events may be published."""
    stored: set[tuple[str, str]] = field(default_factory=set)
    """The states that events have announced, by the event id of the schedule. The broker stored these events."""
    cancellations: dict[Position, TimerName] = field(default_factory=dict)
    """The accepted cancellations of many timers: the tenant and the prefix."""
    cancellation_ids: dict[Position, str] = field(default_factory=dict)
    """The ids of their commands."""
    cancelled: Counter[Position] = field(default_factory=Counter)
    """How many timers each of them has cancelled."""
    outcomes: Counter[str] = field(default_factory=Counter)
    accepted: set[TimerName] = field(default_factory=set)
    """The timers that got a new schedule in the current transaction."""
    changed: set[TimerName] = field(default_factory=set)
    """The timers that the current transaction cancelled or retried."""

    # Commands

    def command(self, sent: TimerCommand, command_id: str, position: Position) -> str:
        """Apply the next command of its tenant and return its outcome."""
        assert sent.name is not None, f"{sent} was accepted"
        if sent.type == "CancelTimers":
            outcome = "cancelling"
            self.cancellations[position], self.cancellation_ids[position] = sent.name, command_id
        else:
            outcome = self._decide(sent, self.timers.get(sent.name), position)
        self.outcomes[outcome] += 1
        return outcome

    def _decide(self, sent: TimerCommand, timer: Timer | None, position: Position) -> str:
        assert timer is None or timer.position < position, f"{sent} came after a newer command"
        if sent.type != "ScheduleTimer" and timer is None:
            return "not_found"
        if timer is not None and timer.state == REACHED:
            return "ignored_reached" if sent.type == "ScheduleTimer" else "already_reached"
        match sent.type:
            case "ScheduleTimer":
                return self._schedule(sent, timer, position)
            case "CancelTimer":
                return self._cancel(sent, timer, position)
            case _:
                return self._retry(sent, timer, position)

    def _schedule(self, sent: TimerCommand, timer: Timer | None, position: Position) -> str:
        assert sent.name is not None
        wanted = SCHEDULED, sent.due_at, sent.data, sent.expires_at, sent.topic
        if timer is not None:
            found = timer.state, timer.due_at, timer.data, timer.expires_at, timer.topic
            if found == wanted:
                timer.position = position
                return "unchanged"
        self.timers[sent.name] = Timer(SCHEDULED, position, sent.due_at, sent.data, sent.expires_at, sent.topic)
        self.accepted.add(sent.name)
        if timer is None or timer.state != SCHEDULED:
            return "scheduled"
        return "updated" if timer.due_at == sent.due_at else "rescheduled"

    def _cancel(self, sent: TimerCommand, timer: Timer | None, position: Position) -> str:
        assert sent.name is not None
        assert timer is not None
        if timer.state == EXPIRED:
            return "already_expired"
        if timer.state == CANCELLED:
            return "unchanged"
        timer.state, timer.position = CANCELLED, position
        self.changed.add(sent.name)
        return "cancelled"

    def _retry(self, sent: TimerCommand, timer: Timer | None, position: Position) -> str:
        assert sent.name is not None
        assert timer is not None
        if timer.state != FAILED:
            return "unchanged"
        timer.state, timer.position, timer.claims = SCHEDULED, position, 0
        self.changed.add(sent.name)
        return "retried"

    def check_commands(self, before: Rows, after: Rows) -> None:
        """Compare the rows after a batch of commands. Read the event ids of the accepted schedules."""
        self.check_rows(after)
        for name in self.accepted:
            self._accept(name, after[name])
        for name, row in after.items():
            if name in self.accepted | self.changed:
                assert row.lease_token is None, f"{name} was changed but is still leased: {row}"
                assert row.state != SCHEDULED or row.attempt == 0, f"{name} starts with attempt {row.attempt}: {row}"
            elif name in before:
                assert row._replace(position=before[name].position) == before[name], f"{name} changed without a command"
        self.accepted.clear()
        self.changed.clear()

    def _accept(self, name: TimerName, row: Row) -> None:
        assert row.event_id is not None, f"{name} has no event id: {row}"
        assert row.event_id not in self.fires, f"{self.fires[row.event_id]} and {name} have the same event id: {row}"
        self.fires[row.event_id] = Scheduled(Fire(name, row.due_at or 0, row.data, row.topic), row.expires_at)

    def check_rows(self, rows: Rows) -> None:
        """Assert that the rows equal the model."""
        wanted = {
            name: (timer.state, timer.position, timer.due_at, timer.data, timer.expires_at, timer.topic)
            for name, timer in self.timers.items()
        }
        found = {
            name: (row.state, row.position, row.due_at, row.data, row.expires_at, row.topic)
            for name, row in rows.items()
        }
        assert found == wanted, f"the database has {found}, not {wanted}"

    # Relays

    def apply_relay_commit(self, before: Rows, after: Rows, tokens: Collection[str], now: int) -> None:
        """Apply the changes of one relay transaction and assert that they are allowed.

        `tokens` are the lease tokens in its statements.
        """
        claimed: list[TimerName] = []
        for name, row in after.items():
            old = before[name]
            if row != old:
                assert old.state == SCHEDULED, f"{name} was already settled: {old} -> {row}"
                settling = {"state", "available_at", "lease_token", "attempt", "settled_at"}
                assert all(getattr(row, each) == getattr(old, each) for each in {*Row._fields} - settling), row
                if row.lease_token in tokens:
                    self._claim(name, old, row, now)
                    claimed.append(name)
                elif old.lease_token in tokens:
                    self._settle(name, row)
                else:
                    assert old.available_at is not None
                    assert old.available_at <= now, f"{name} is leased by another claim: {old} -> {row}"
                    given_back = old._replace(lease_token=None, available_at=old.due_at)
                    assert row == given_back, f"{name} was claimed and not given back: {old} -> {row}"
        is_alone = any(after[name].attempt > self.max_attempts for name in claimed)
        assert len(claimed) == 1 or not is_alone, f"an exhausted row was claimed with others: {claimed}"
        self.check_rows(after)

    def _claim(self, name: TimerName, old: Row, row: Row, now: int) -> None:
        assert old.available_at is not None, f"{name} was claimed after it was settled"
        assert old.available_at <= now, f"{name} was claimed at {now}, before it was available: {old}"
        self.claimed.add(row.event_id or "")
        assert row.attempt == old.attempt + 1, f"{name}: a claim must add one attempt"
        self.timers[name].claims += 1

    def _settle(self, name: TimerName, row: Row) -> None:
        timer = self.timers[name]
        match row.state:
            case "Reached" | "Expired":
                assert (row.event_id, row.state) in self.stored, f"{name}: its event was not stored: {row}"
                is_late = row.expires_at is not None and row.expires_at <= (row.settled_at or 0)
                assert is_late == (row.state == EXPIRED), f"{name} has the wrong state for its instant: {row}"
            case "Failed":
                assert timer.claims >= self.max_attempts, f"{name} failed after only {timer.claims} attempts"
            case state:
                assert state == SCHEDULED, f"{name}: the relay set the state {state}"
        timer.state = row.state

    def check_recovery(self, before: Rows, after: Rows, now: int) -> None:
        """Assert that a recovery only ended the leases of the crashed process."""
        for name, row in after.items():
            if row != before[name]:
                assert before[name].lease_token is not None, f"{name} was not leased: {before[name]} -> {row}"
                assert row == before[name]._replace(lease_token=None, available_at=row.available_at)
                assert row.available_at is not None
                assert row.available_at <= now, f"{name} is not available after the recovery: {row}"
        self.check_rows(after)

    # Cancellations of many timers

    def apply_cancellation_commit(self, before: Rows, after: Rows, finished: Collection[Position]) -> None:
        """Apply the changes of a transaction that cancels many timers, and assert that they are allowed.

        A cancellation that is `finished` has left no older timer pending.
        """
        for name, row in after.items():
            old, timer = before[name], self.timers[name]
            if row != old:
                assert old.state in {SCHEDULED, FAILED}, f"{name} was not pending: {old} -> {row}"
                assert old.position < row.position, f"a newer command on {name} was undone: {old} -> {row}"
                cancellation = self.cancellations.get(row.position)
                assert cancellation is not None, f"{row.position} is no cancellation"
                assert _concerns(cancellation, name), f"{cancellation} does not concern {name}"
                wanted = old._replace(state=CANCELLED, position=row.position, available_at=None, lease_token=None)
                assert row == wanted, f"{name} was not cancelled: {old} -> {row}"
                timer.state, timer.position = CANCELLED, row.position
                self.cancelled[row.position] += 1
        self.check_rows(after)
        for position in finished:
            for name, timer in self.timers.items():
                is_left = timer.state in {SCHEDULED, FAILED} and timer.position < position
                assert not (is_left and _concerns(self.cancellations[position], name)), f"{name} was not cancelled"

    def check_cancellations(self, announced: Mapping[str, tuple[int, int]]) -> None:
        """Assert that all cancellations were announced once.

        `announced` has by command id how often a cancellation was announced, and how many timers it has cancelled.
        """
        wanted = {self.cancellation_ids[position]: (1, self.cancelled[position]) for position in self.cancellations}
        assert announced == wanted, f"announced {announced}, not {wanted}"

    # Events

    def record_event(self, event_id: str, fire: Fire, state: str, at: int, now: int) -> None:
        """Record an event that the broker has just stored, and assert that it is allowed.

        The event announces that the timer has had a state since `at`.
        """
        ids = {expired_event_id(each) if state == EXPIRED else each: each for each in self.fires}
        event_id = ids.get(event_id, "")
        assert event_id, f"the id of {fire}, {state}, belongs to no accepted schedule"
        assert self.fires[event_id].fire == fire, f"{event_id} belongs to {self.fires[event_id]}, not to {fire}"
        assert fire.due_at <= at <= now, f"{fire} fired early, at {at}"
        expires_at = self.fires[event_id].expires_at
        is_late = expires_at is not None and expires_at <= at
        assert is_late == (state == EXPIRED), f"{fire} was announced as {state} at {at}; it expires at {expires_at}"
        assert event_id in self.claimed, f"{fire} fired, but it was cancelled or replaced before any claim"
        self.stored.add((event_id, state))

    def check_finished(self, rows: Rows) -> None:
        """Assert that no work is left after all faults were removed."""
        self.check_rows(rows)
        for name, row in rows.items():
            assert row.lease_token is None, f"{name} is still leased"
            assert row.state != SCHEDULED, f"{name} did not fire: {row}"
            fired = row.state in {REACHED, EXPIRED}
            assert not fired or (row.event_id, row.state) in self.stored, f"the event of {name} was lost: {row}"


def _concerns(cancellation: TimerName, name: TimerName) -> bool:
    """Return whether a cancellation, whose `call` is a prefix, concerns a timer."""
    return name.tenant == cancellation.tenant and name.call.startswith(cancellation.call)
