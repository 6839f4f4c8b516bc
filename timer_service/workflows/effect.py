"""Effects: the attempts of steps with their delays, and how sleeps and waits for messages end. Pure."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from timer_service.core.service.workflow_start import RetryPolicy
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Position
from timer_service.workflows.messages import ErrorView
from timer_service.workflows.protocol import EffectKind, EffectStatus, StepResult, Wait

_MOST_DOUBLINGS = 64


class EffectKey(NamedTuple):
    """The key of an effect in its workflow."""

    name: str
    n: int
    """How many earlier effects of the workflow have this name."""

    @classmethod
    def parse(cls, text: str) -> "EffectKey":
        """Return the key of `name` or `name:n`."""
        name, _, n = text.partition(":")
        return cls(name, int(n or 0))

    @property
    def text(self) -> str:
        """The key as on the wire."""
        return f"{self.name}:{self.n}" if self.n else self.name


class Message(NamedTuple):
    """A message that waits, without its data."""

    name: str
    position: Position
    sent_at: int
    """The command time."""
    size: int


class Effect(NamedTuple):
    """What a workflow awaits or has awaited."""

    key: EffectKey
    kind: EffectKind
    status: EffectStatus = EffectStatus.OPEN
    seq: int | None = None
    failures: int = 0
    due_at: int | None = None
    """When a sleep ends, a wait for a message times out, or a failed step may start again."""
    counted_from: int | None = None
    """The instant, by the service's clock, from which `due_at` counts, while the effect is open."""
    size: int = 0
    """The bytes of its result or its error."""
    digest: str | None = None
    error: str | None = None
    """The JSON of an `ErrorView`, if this transaction stores it. A stored one is not loaded for decisions."""
    result: str | None = None
    """As JSON, if this transaction stores it. A stored one is not loaded."""
    taken: Message | None = None
    """The message that this transaction takes as its result."""

    @property
    def is_wait(self) -> bool:
        """Whether it is a sleep or a wait for a message."""
        return self.kind is not EffectKind.STEP

    @property
    def is_over(self) -> bool:
        """Whether it is a wait that has ended and whose end the function has not got."""
        return self.is_wait and self.status is not EffectStatus.OPEN and self.seq is None

    def end(self, status: EffectStatus) -> "Effect":
        """Return the effect with its last status."""
        return self._replace(status=status, counted_from=None)


Effects = Mapping[EffectKey, Effect]
Inbox = Mapping[str, tuple[Message, ...]]
"""The next messages that wait, by name, in the order of their positions."""


class ConflictingReportError(Exception):
    """A report differs from what is stored."""


def digest_of(text: str) -> str:
    """Return a short hash of a text, to compare results without loading them."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def size_of(text: str | None) -> int:
    """Return the bytes of a text."""
    return 0 if text is None else len(text.encode())


def dump_error(error: ErrorView) -> str:
    """Return an error as JSON."""
    return error.model_dump_json()


def end_attempt(found: Effect | None, step: StepResult, policy: RetryPolicy, now: int, rng: random.Random) -> Effect:
    """Return a step after an attempt has ended. A repeated report changes nothing.

    Raises `ConflictingReportError` if it contradicts the stored effect.
    """
    effect = found or Effect(EffectKey.parse(step.key), EffectKind.STEP)
    if effect.kind is not EffectKind.STEP:
        raise ConflictingReportError
    if step.attempt <= effect.failures and step.error is not None:
        return effect
    if step.attempt != effect.failures + 1 or effect.status is EffectStatus.FAILED:
        raise ConflictingReportError
    if step.error is not None:
        if effect.status is EffectStatus.DONE:
            raise ConflictingReportError
        if not step.retryable or step.attempt >= (step.retry or policy).max_attempts:
            return _failed(effect, step, step.error).end(EffectStatus.FAILED)._replace(due_at=None)
        delay = retry_delay(step.retry or policy, step.attempt, rng) if step.after_ms is None else step.after_ms
        return _failed(effect, step, step.error)._replace(due_at=now + delay, counted_from=now)
    result = None if step.result is None else dump_data(step.result)
    digest = digest_of(result or "null")
    if effect.status is EffectStatus.DONE:
        if effect.digest != digest:
            raise ConflictingReportError
        return effect
    done = effect.end(EffectStatus.DONE)
    return done._replace(due_at=None, error=None, result=result, digest=digest, size=size_of(result))


def _failed(effect: Effect, step: StepResult, error: ErrorView) -> Effect:
    """Return a step with one more failure."""
    text = dump_error(error)
    return effect._replace(failures=step.attempt, error=text, size=size_of(text))


def retry_delay(policy: RetryPolicy, failures: int, rng: random.Random) -> int:
    """Return the delay in ms after the n-th failure: from 0 to min(cap, first * factor^(n-1))."""
    longest = min(float(policy.cap), policy.first * policy.factor ** min(failures - 1, _MOST_DOUBLINGS))
    return int(rng.random() * longest)


def begin_wait(found: Effect | None, wait: Wait, now: int) -> Effect:
    """Return a sleep or a wait for a message that began. A stored one keeps its instant.

    Raises `ConflictingReportError` if the stored effect is of another kind.
    """
    if found is not None:
        if found.kind is not wait.kind:
            raise ConflictingReportError
        return found
    length = 0 if wait.ms is None and wait.kind is EffectKind.SLEEP else wait.ms
    begun = Effect(EffectKey.parse(wait.key), wait.kind)
    return begun if length is None else begun._replace(due_at=now + length, counted_from=now)


def end_waits(effects: Effects, inbox: Inbox, now: int, *, may_time_out: bool) -> tuple[Effects, Inbox]:
    """Return the effects after every wait that is over at `now` has ended, and the messages that are left.

    A sleep ends at its instant. A wait for a message takes the next message of its name. If this message was sent later
    than the timeout, the wait has timed out. Unless `may_time_out`, no wait times out.
    """
    waits = _open_waits(effects.values())
    if not waits:
        return effects, inbox
    after, left = dict(effects), dict(inbox)
    for effect in waits:
        is_due = effect.due_at is not None and effect.due_at <= now
        if effect.kind is EffectKind.SLEEP:
            if is_due:
                after[effect.key] = effect.end(EffectStatus.DONE)
            continue
        waiting = left.get(effect.key.name, ())
        in_time = waiting and (effect.due_at is None or not is_due or waiting[0].sent_at <= effect.due_at)
        if in_time:
            message, *rest = waiting
            left[effect.key.name] = tuple(rest)
            after[effect.key] = effect.end(EffectStatus.DONE)._replace(size=message.size, taken=message)
        elif is_due and may_time_out:
            after[effect.key] = effect.end(EffectStatus.FAILED)
    return after, left


def _open_waits(effects: Iterable[Effect]) -> list[Effect]:
    """Return the waits that are not over. Those of one name are in the order in which they began."""
    waits = [each for each in effects if each.is_wait and each.status is EffectStatus.OPEN]
    return sorted(waits, key=attrgetter("key"))  # the number in a key counts the earlier effects of its name


def message_names(effects: Iterable[Effect]) -> Counter[str]:
    """Return how many waits for messages of each name are not over."""
    return Counter(each.key.name for each in _open_waits(effects) if each.kind is EffectKind.MESSAGE)


class Due(NamedTuple):
    """An instant at which a workflow may continue."""

    at: int
    counted_from: int | None
    """The instant, by the service's clock, from which it counts."""


def next_due(effects: Iterable[Effect]) -> Due | None:
    """Return the earliest instant at which an open effect is due; None if none has an instant."""
    opened = [each for each in effects if each.status is EffectStatus.OPEN]
    instants = [Due(each.due_at, each.counted_from) for each in opened if each.due_at is not None]
    return min(instants, key=lambda due: due.at, default=None)
