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

_TRIGGERS: dict[TriggerKind, dict[str, type[StatusTransition | TimeAt]]] = {
    TriggerKind.EVENT: {"work_item.status.transition": StatusTransition},
    TriggerKind.TIME: {"time.at": TimeAt},
}


@lru_cache(maxsize=256)  # signals often have the same spec, and a command on a signal reads it several times
def read_trigger(kind: TriggerKind, spec: str, *, has_work_item: bool) -> Trigger:
    """Return the trigger of a stored `trigger_spec`."""
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


def _fold(status: str) -> str:
    return status.strip().casefold()
