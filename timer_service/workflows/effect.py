"""Effects: the attempts of steps with their delays, and how sleeps and waits for messages end. Pure."""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from timer_service.core.service.workflow_start import RetryPolicy
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Position
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


def end_attempt(found: Effect | None, step: StepResult, policy: RetryPolicy, now: int, rng: random.Random) -> Effect:
    """Return a step after an attempt has ended. A repeated report changes nothing.

    Raises `ConflictingReportError` if it contradicts the stored effect.
    """
    effect = found or Effect(EffectKey.parse(step.key), EffectKind.STEP)
    if effect.kind is not EffectKind.STEP:
        raise ConflictingReportError
    if step.error is None:
        return _succeed(effect, step)
    return _fail(effect, step, step.error.model_dump_json(), step.retry or policy, now=now, rng=rng)


def _succeed(effect: Effect, step: StepResult) -> Effect:
    """Return a step after its successful attempt. If it was done before, the result must be the same."""
    result = None if step.result is None else dump_data(step.result)
    digest = digest_of(result or "null")
    is_other = effect.status is EffectStatus.DONE and effect.digest != digest
    if step.attempt != effect.failures + 1 or effect.status is EffectStatus.FAILED or is_other:
        raise ConflictingReportError
    if effect.status is EffectStatus.DONE:
        return effect
    done = effect.end(EffectStatus.DONE)
    return done._replace(due_at=None, error=None, result=result, digest=digest, size=size_of(result))


def _fail(effect: Effect, step: StepResult, error: str, policy: RetryPolicy, *, now: int, rng: random.Random) -> Effect:
    """Return a step after a failed attempt: it may start again after a delay, unless this was the last attempt."""
    if step.attempt <= effect.failures:  # a repeated report
        return effect
    if step.attempt != effect.failures + 1 or effect.status is not EffectStatus.OPEN:
        raise ConflictingReportError
    failed = effect._replace(failures=step.attempt, error=error, size=size_of(error))
    if not step.retryable or step.attempt >= policy.max_attempts:
        return failed.end(EffectStatus.FAILED)._replace(due_at=None)
    delay = retry_delay(policy, step.attempt, rng) if step.after_ms is None else step.after_ms
    return failed._replace(due_at=now + delay, counted_from=now)


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
    begun = Effect(EffectKey.parse(wait.key), wait.kind)
    if wait.ms is None and wait.kind is EffectKind.MESSAGE:  # it has no timeout
        return begun
    return begun._replace(due_at=now + (wait.ms or 0), counted_from=now)


def end_waits(effects: Effects, inbox: Inbox, now: int, *, may_time_out: bool) -> tuple[Effects, Inbox]:
    """Return the effects after every wait that is over at `now` has ended, and the messages that are left.

    Unless `may_time_out`, no wait for a message times out.
    """
    waits = _open_waits(effects.values())
    if not waits:
        return effects, inbox
    after, left = dict(effects), dict(inbox)
    for wait in waits:
        messages = left.get(wait.key.name, ())
        after[wait.key] = ended = _end_wait(wait, messages[0] if messages else None, now, may_time_out=may_time_out)
        if ended.taken is not None:
            left[wait.key.name] = messages[1:]
    return after, left


def _end_wait(wait: Effect, message: Message | None, now: int, *, may_time_out: bool) -> Effect:
    """Return an open wait after its end, or as it is if it is not over at `now`.

    A sleep ends at its instant. A wait for a message takes `message`, the next one of its name. If this message was
    sent later than the timeout, the wait has timed out.
    """
    due_at = math.inf if wait.due_at is None else wait.due_at
    is_due = due_at <= now
    if wait.kind is EffectKind.SLEEP:
        return wait.end(EffectStatus.DONE) if is_due else wait
    if message is not None and (not is_due or message.sent_at <= due_at):
        return wait.end(EffectStatus.DONE)._replace(size=message.size, taken=message)
    return wait.end(EffectStatus.FAILED) if is_due and may_time_out else wait


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
