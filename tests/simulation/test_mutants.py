"""Mutants that the timer simulation must find. Each one is a plausible mistake that breaks a guarantee."""

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.harness.memory_broker import MemoryBroker
from tests.simulation.intake_mutants import INTAKE_MUTANTS, Mutate, change_statement
from tests.simulation.timer_state_machine import TALLY, TimerStateMachine
from tests.simulation.timer_system import VISIBILITY_TIMEOUT
from timer_service import timers
from timer_service.core.due import lease
from timer_service.core.due.long_texts import LongTexts
from timer_service.core.events.settlement import Settlement, Settler
from timer_service.core.ports.broker import PublishResult, PublishStatus
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.values.message import Message
from timer_service.timers import cancellations, events, rules
from timer_service.timers.messages import State
from timer_service.timers.rules import Applied, Outcome

_FIND = settings(
    max_examples=3000,
    stateful_step_count=50,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class WorkersAlone(TimerStateMachine):
    """The timers that are there at the start, and their workers. A history has no commands and no restarts."""

    change = retry_failed = send_invalid_command = send_failing_command = None  # type: ignore[assignment]  # no rules
    change_log = start = read = pass_cancellations = None  # type: ignore[assignment]

    def schedule(self, *args: Any, **fields: Any) -> None:
        """Schedule a timer at the start: this is no rule."""
        super().schedule(*args, **fields)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Completing a claim does not check its lease token."""
    change_statement(patch, "core/due/lease", "complete", " AND lease_token = :token")
    for name in ("complete_claim", "complete_claim_shared"):
        change_statement(patch, "core/due/lease", name, " AND lease_token = :token")


def no_fence_on_whole_claims(patch: pytest.MonkeyPatch) -> None:
    """Completing a whole claim in one statement does not check its lease token."""
    for name in ("complete_claim", "complete_claim_shared"):
        change_statement(patch, "core/due/lease", name, " AND lease_token = :token")


def no_fence_on_release(patch: pytest.MonkeyPatch) -> None:
    """Releasing rows does not check their lease token."""
    change_statement(patch, "core/due/lease", "release", " AND lease_token = :token")


def update_keeps_its_id(patch: pytest.MonkeyPatch) -> None:
    """A schedule with other data keeps the event id of the previous data."""
    patch.setattr(rules, "event_id", lambda key, due_at, _position: "/".join((*key[:2], str(due_at))))


def update_keeps_its_claim(patch: pytest.MonkeyPatch) -> None:
    """A claim of the previous schedule settles the new schedule."""
    change_statement(patch, "timers/store", "put", ", lease_token = NULL")


def update_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A schedule with the same due time is ignored even if its data differs."""
    apply = rules.apply

    def apply_due_times(timer: rules.Timer | None, *rest: Any) -> Applied:
        after, outcome = apply(timer, *rest)
        return Applied(timer if outcome is Outcome.UPDATED else after, outcome)

    patch.setattr(rules, "apply", apply_due_times)


def event_without_the_topic(patch: pytest.MonkeyPatch) -> None:
    """The event of a timer that was claimed before loses its topic."""
    encode = events.timer_event
    patch.setattr(
        timers, "timer_event", lambda row, at: encode({**row, "topic": None} if row["attempt"] > 1 else row, at)
    )


def topic_is_no_content(patch: pytest.MonkeyPatch) -> None:
    """A ScheduleTimer that changes nothing but the topic is ignored, so the event has the old one."""
    patch.setattr(rules, "_content", lambda each: (each.data, each.correlation_id, each.expires_at))


def topic_of_the_first_schedule(patch: pytest.MonkeyPatch) -> None:
    """A timer that is scheduled again keeps its topic."""
    apply = rules.apply

    def keep_topic(timer: rules.Timer | None, *rest: Any) -> Applied:
        after, outcome = apply(timer, *rest)
        if timer is None or after is None or timer.schedule.topic is None:
            return Applied(after, outcome)
        return Applied(after._replace(schedule=after.schedule._replace(topic=timer.schedule.topic)), outcome)

    patch.setattr(rules, "apply", keep_topic)


def due_in_counts_from_the_handling(patch: pytest.MonkeyPatch) -> None:
    """A relative due time counts from when the command is handled, not from when it was stored."""
    due_at = rules.due_time
    patch.setattr(
        rules, "due_time", lambda command, payload, now: due_at(command._replace(stored_at=now), payload, now)
    )


def state_by_the_settlement(patch: pytest.MonkeyPatch) -> None:
    """The state of a fired timer follows from the instant of the settlement, and its event from that of publishing."""
    complete, complete_claim = lease.Lease.complete, lease.Lease.complete_claim
    patch.setattr(lease.Lease, "complete", lambda self, tx, rows, at: complete(self, tx, rows, at + 300))
    patch.setattr(
        lease.Lease,
        "complete_claim",
        lambda self, tx, rows, at, **shared: complete_claim(self, tx, rows, at + 300, **shared),
    )


def expiry_is_exclusive(patch: pytest.MonkeyPatch) -> None:
    """A timer that fires exactly at its expiry is announced as reached."""
    encode = events.timer_event
    patch.setattr(timers, "timer_event", lambda row, at: encode(row, at - (row["expires_at"] == at)))


def expired_is_final(patch: pytest.MonkeyPatch) -> None:
    """An expired timer cannot be scheduled again."""
    apply = rules.apply

    def final(timer: rules.Timer | None, *rest: Any) -> Applied:
        expired = timer is not None and timer.state is State.EXPIRED
        return Applied(timer, Outcome.ALREADY_EXPIRED) if expired else apply(timer, *rest)

    patch.setattr(rules, "apply", final)


def one_id_for_both_events(patch: pytest.MonkeyPatch) -> None:
    """A timer is announced as reached and as expired under one event id."""
    patch.setattr(events, "expired_event_id", lambda event_id: event_id)


def cancels_newer_timers(patch: pytest.MonkeyPatch) -> None:
    """A cancellation of many timers also cancels timers of newer commands."""
    guard = """
    AND (position_epoch, position_sequence) < (:position_epoch, :position_sequence)"""
    change_statement(patch, "timers/cancellations", "cancel", guard)


def unchanged_timers_stay_old(patch: pytest.MonkeyPatch) -> None:
    """A ScheduleTimer that finds its timer as it wants it does not save it from an older CancelTimers."""
    apply = rules.apply

    def keep_position(timer: rules.Timer | None, *rest: Any) -> Applied:
        after, outcome = apply(timer, *rest)
        return Applied(timer if outcome is Outcome.UNCHANGED else after, outcome)

    patch.setattr(rules, "apply", keep_position)


def only_one_page(patch: pytest.MonkeyPatch) -> None:
    """A cancellation of many timers ends after its first page."""
    read_page = cancellations.read_page

    async def read_less(*arguments: Any) -> Sequence[str]:
        return (await read_page(*arguments))[:-1]

    patch.setattr(cancellations, "read_page", read_less)


def settle_before_publish(patch: pytest.MonkeyPatch) -> None:
    """Rows are completed before they are published."""
    claim_with = Settler.settle_and

    async def claim_and_settle(self: Settler, published: Sequence[Settlement], claim: Any) -> Any:
        claimed = await claim_with(self, published, claim)
        if claimed.rows:
            at = claimed.rows[0]["available_at"] - VISIBILITY_TIMEOUT // timedelta(milliseconds=1)
            await self.settle([Settlement(at, complete=list(claimed.rows))])
        return claimed

    patch.setattr(Settler, "settle_and", claim_and_settle)


def long_data_is_written_once(patch: pytest.MonkeyPatch) -> None:
    """A timer that gets other long data keeps the text of its first one."""
    add = LongTexts.add

    async def add_first(self: LongTexts, tx: Transaction, texts: Mapping[tuple[str, str], str]) -> None:
        if not await tx.fetch("SELECT 1 AS one FROM long_texts"):
            await add(self, tx, texts)

    patch.setattr(LongTexts, "add", add_first)


def random_event_id(patch: pytest.MonkeyPatch) -> None:
    """Each attempt to fire has a new event id."""
    rng = random.Random(0)
    encode = events.timer_event

    def with_another_id(row: Row, at: int) -> Message:
        message = encode(row, at)
        another = f"{rng.getrandbits(64):x}"
        body = json.dumps({**json.loads(message.body), "id": another}).encode()
        return message._replace(id=another, body=body)

    patch.setattr(timers, "timer_event", with_another_id)


def claimed_early(patch: pytest.MonkeyPatch) -> None:
    """Timers are claimed one second before they are due."""
    claim = lease.Lease.claim
    patch.setattr(lease.Lease, "claim", lambda self, tx, now, limit, **how: claim(self, tx, now + 1000, limit, **how))


def unavailable_counts_as_published(patch: pytest.MonkeyPatch) -> None:
    """An event counts as published even if the broker is unavailable."""
    publish = MemoryBroker.publish

    async def publish_all(self: MemoryBroker, messages: Sequence[Message]) -> Sequence[PublishResult]:
        return [PublishResult(PublishStatus.PUBLISHED) for _ in await publish(self, messages)]

    patch.setattr(MemoryBroker, "publish", publish_all)


def leases_never_end(patch: pytest.MonkeyPatch) -> None:
    """A leased row is never claimed again, even after its lease expired."""
    available = "available_at <= :now"
    change_statement(patch, "core/due/lease", "claim", available, f"{available} AND lease_token IS NULL")


MUTANTS = [
    no_fence,
    no_fence_on_whole_claims,
    no_fence_on_release,
    update_keeps_its_id,
    update_keeps_its_claim,
    update_is_ignored,
    event_without_the_topic,
    topic_is_no_content,
    topic_of_the_first_schedule,
    due_in_counts_from_the_handling,
    state_by_the_settlement,
    expiry_is_exclusive,
    expired_is_final,
    one_id_for_both_events,
    cancels_newer_timers,
    unchanged_timers_stay_old,
    only_one_page,
    settle_before_publish,
    long_data_is_written_once,
    random_event_id,
    claimed_early,
    unavailable_counts_as_published,
    leases_never_end,
    *INTAKE_MUTANTS,
]


@pytest.mark.full
@pytest.mark.timeout(600)  # all examples take two minutes on a quiet machine; their number bounds the search
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_mutant_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer simulation finds the mutant."""
    mutate(monkeypatch)
    TALLY.clear()
    machine = WorkersAlone if mutate is no_fence_on_release else TimerStateMachine
    with pytest.raises((AssertionError, sqlite3.IntegrityError)) as caught:
        run_state_machine_as_test(seed(1)(type("Broken", (machine,), {})), settings=_FIND)
    print(f"{mutate.__name__}: found in run {TALLY['runs']}, {TALLY['steps']} steps: {caught.value}")
