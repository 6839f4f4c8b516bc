"""What a signal can wait for. Pure. A trigger is a class here and its entry in the registry."""

import json
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from timer_service.core.instant import Instant
from timer_service.core.message import Payload
from timer_service.signals.messages import ItemStatus, TriggerKind


class StatusTransition(Payload):
    """Comes true when the signal's work item comes to one of some statuses; case and outer spaces do not matter."""

    kind: Literal["work_item.status.transition"]
    to: list[ItemStatus] = Field(min_length=1)

    def matches(self, status: str) -> bool:
        """Return whether `to` names a status."""
        return _fold(status) in self._folded

    @cached_property
    def _folded(self) -> frozenset[str]:
        return frozenset(map(_fold, self.to))


class TimeAt(Payload):
    """Comes true at an instant."""

    kind: Literal["time.at"]
    at: Instant


class Invalid(NamedTuple):
    """A trigger that can't be read: it never comes true."""

    reason: str


Trigger = StatusTransition | TimeAt | Invalid

_MOST_CACHED = 1000
"""Characters of a trigger that is kept in memory once it is read."""

_KINDS: dict[TriggerKind, dict[str, type[StatusTransition | TimeAt]]] = {
    TriggerKind.EVENT: {"work_item.status.transition": StatusTransition},
    TriggerKind.TIME: {"time.at": TimeAt},
}


def read_trigger(kind: TriggerKind, spec: str, *, has_work_item: bool) -> Trigger:
    """Read a trigger as it is stored."""
    # Most of the thousands of signals on one work item have the same short trigger. Long ones would fill the memory.
    read = _read_cached if len(spec) <= _MOST_CACHED else _read
    return read(kind, spec, has_work_item)


def _read(kind: TriggerKind, spec: str, has_work_item: bool) -> Trigger:  # noqa: FBT001
    fields = json.loads(spec)
    known = _KINDS[kind]
    model = known.get(fields.get("kind")) if isinstance(fields.get("kind"), str) else None
    if model is None:
        return Invalid(f"kind: must be one of {', '.join(known)} where triggerKind is {kind}")
    if model is StatusTransition and not has_work_item:
        return Invalid("workItemId: is needed by this kind of trigger")
    try:
        return model.model_validate(fields, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return Invalid("; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in details[:3]))


_read_cached = lru_cache(maxsize=1024)(_read)


def _fold(status: str) -> str:
    return status.strip().casefold()
