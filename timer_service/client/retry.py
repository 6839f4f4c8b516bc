"""The retry policy of steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from timer_service.client.checks import check_type, wire_duration

_MOST_ATTEMPTS = 1000
_LARGEST_FACTOR = 100
_LONGEST_FIRST = timedelta(days=1)
_LONGEST_CAP = timedelta(days=7)


@dataclass(frozen=True)
class Retry:
    """When a failed step is tried again: after a random time of at most `first`, then `factor` times as long each time.

    No delay is longer than `cap`. After `max_attempts` attempts the step has failed: it raises `StepFailed`.
    """

    max_attempts: int = 5
    first: timedelta = timedelta(seconds=1)
    factor: float = 2
    cap: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= _MOST_ATTEMPTS:
            raise ValueError(f"max_attempts must lie between 1 and {_MOST_ATTEMPTS}")
        if not 1 <= self.factor <= _LARGEST_FACTOR:
            raise ValueError(f"factor must lie between 1 and {_LARGEST_FACTOR}")
        if not timedelta() <= self.first <= _LONGEST_FIRST:
            raise ValueError("first must lie between 0 and 1 day")
        if not timedelta() <= self.cap <= _LONGEST_CAP:
            raise ValueError("cap must lie between 0 and 7 days")

    @cached_property
    def wire(self) -> Mapping[str, Any]:
        """The policy in its wire form."""
        first, cap = wire_duration("first", self.first), wire_duration("cap", self.cap)
        return {"maxAttempts": self.max_attempts, "first": first, "factor": self.factor, "cap": cap}


def wire_retry(retry: object) -> Mapping[str, Any]:
    """Return the wire form of a `Retry`. Raises `ValueError` if it is something else."""
    return check_type("retry", retry, Retry, "a Retry").wire
