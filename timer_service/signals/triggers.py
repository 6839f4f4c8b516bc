"""The triggers of signals. Pure functions. To add a trigger, add a class and its entry in `_TRIGGERS`."""

import json
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from timer_service.core.values.codec import plain_words
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Payload
from timer_service.signals.messages import ItemStatus, TriggerKind

_MAX_STATUSES = 100
"""With more, a thousand signals of one work item would block the event loop for seconds at each of its transitions."""


class StatusTransition(Payload):
    """A trigger that becomes true when the work item reaches one of the statuses in `to`.

    Upper and lower case, and spaces around a status, do not matter.
    """

    kind: Literal["work_item.status.transition"]
    to: list[ItemStatus] = Field(min_length=1, max_length=_MAX_STATUSES, fail_fast=True)

    def matches(self, status: str) -> bool:
        """Return whether `to` contains the status."""
        return _fold(status) in self._folded

    @cached_property
    def _folded(self) -> frozenset[str]:
        return frozenset(map(_fold, self.to))


class TimeAt(Payload):
    """A trigger that becomes true at the instant `at`."""

    kind: Literal["time.at"]
    at: Instant


class Invalid(NamedTuple):
    """An invalid trigger. It never becomes true."""

    reason: str


Trigger = StatusTransition | TimeAt | Invalid

_MAX_CACHED_SPEC = 1000
"""The longest trigger spec of which many are cached, in characters."""

_TRIGGERS: dict[TriggerKind, dict[str, type[StatusTransition | TimeAt]]] = {
    TriggerKind.EVENT: {"work_item.status.transition": StatusTransition},
    TriggerKind.TIME: {"time.at": TimeAt},
}


def read_trigger(kind: TriggerKind, spec: str, *, has_work_item: bool) -> Trigger:
    """Return the trigger of a stored `trigger_spec`."""
    # Thousands of signals on one work item often have the same short spec. Long specs would use too much memory. Some
    # are kept, because a command on a signal reads its trigger several times.
    read = _read_cached if len(spec) <= _MAX_CACHED_SPEC else _read_long
    return read(kind, spec, has_work_item)


def _read(kind: TriggerKind, spec: str, has_work_item: bool) -> Trigger:  # noqa: FBT001
    fields = json.loads(spec)
    known = _TRIGGERS[kind]
    model = known.get(fields.get("kind")) if isinstance(fields.get("kind"), str) else None
    if model is None:
        return Invalid(f"kind: must be one of {', '.join(known)} where triggerKind is {kind}")
    if model is StatusTransition and not has_work_item:
        return Invalid("workItemId: required by this kind of trigger")
    try:
        return model.model_validate(fields, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return Invalid(
            "; ".join(f"{'.'.join(map(str, each['loc']))}: {plain_words(each['msg'])}" for each in details[:3])
        )


_read_cached = lru_cache(maxsize=1024)(_read)
_read_long = lru_cache(maxsize=16)(_read)


def _fold(status: str) -> str:
    return status.strip().casefold()
