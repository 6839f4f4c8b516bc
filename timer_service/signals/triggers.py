"""What a signal can wait for. Pure. A trigger is a class here and its entry in the registry."""

import json
from functools import lru_cache
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from timer_service.core.instant import Instant
from timer_service.core.message import Payload
from timer_service.signals.messages import ItemStatus, TriggerKind


class StatusTransition(Payload):
    """Comes true when the signal's work item comes to one of some statuses, however they are written."""

    kind: Literal["work_item.status.transition"]
    to: list[ItemStatus] = Field(min_length=1)

    def matches(self, status: str) -> bool:
        """Tell whether a status is one of those."""
        return _plain(status) in map(_plain, self.to)


class TimeAt(Payload):
    """Comes true at an instant."""

    kind: Literal["time.at"]
    at: Instant


class Invalid(NamedTuple):
    """A trigger that can't be read: it never comes true."""

    reason: str


Trigger = StatusTransition | TimeAt | Invalid

_KINDS: dict[TriggerKind, dict[str, type[StatusTransition | TimeAt]]] = {
    TriggerKind.EVENT: {"work_item.status.transition": StatusTransition},
    TriggerKind.TIME: {"time.at": TimeAt},
}


@lru_cache(maxsize=1024)  # of the thousands of signals on one work item, most say the same
def read_trigger(kind: TriggerKind, spec: str, *, has_work_item: bool) -> Trigger:
    """Read a trigger as it is stored."""
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


def _plain(status: str) -> str:
    return status.strip().casefold()
