"""The commands about buried events and parked events."""

from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from timer_service.core.values.address import MAX_MESSAGE_BYTES, TENANT_PATTERN
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Identifier, JsonObject, TenantPayload

Consumer = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
"""The name of a consumer. It is a token of subjects."""

Reason = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", min_length=1, max_length=1000)]

MAX_EVENT_BYTES = MAX_MESSAGE_BYTES - 32 * 1024
"""The largest parked event. The rest of a message is for the other fields of the reply that has it."""
_MOST_ATTEMPTS = 2**31 - 1
"""The largest number of the column."""


class RetryEvent(TenantPayload):
    """Publish a buried event now, under the same id. The count of attempts starts again at 0."""

    type: ClassVar[str] = "RetryEvent"
    is_operator_action: ClassVar[bool] = True

    event_id: Identifier


class EventBody(BaseModel):
    """A whole event, as it was published."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: Identifier
    type: Identifier
    payload: JsonObject

    @cached_property
    def text(self) -> str:
        """The event as compact JSON. Raises ValueError for numbers that JSON cannot hold."""
        return dump_data({"id": self.id, "type": self.type, **(self.model_extra or {}), "payload": self.payload})


class ParkEvent(TenantPayload):
    """Store an event that a consumer gave up, with the reason, until it is resubmitted or dropped."""

    type: ClassVar[str] = "ParkEvent"

    consumer: Consumer = Field(description="The name of the consumer that gave the event up.")
    event: EventBody
    reason: Reason
    attempts: int = Field(ge=1, le=_MOST_ATTEMPTS, strict=True, description="How often the consumer tried the event.")

    @field_validator("event")
    @classmethod
    def _check_event(cls, event: EventBody, info: ValidationInfo) -> EventBody:
        """Return an event of the tenant that can be published again."""
        tenant = info.data.get("tenant_id")
        if tenant is not None and (event.model_extra or {}).get("tenantId", tenant) != tenant:
            raise PydanticCustomError("tenant", "must have the tenantId of the command, or none")
        try:
            size = len(event.text.encode())
        except ValueError as error:
            raise PydanticCustomError("data", "has a number that JSON cannot hold") from error
        if size > MAX_EVENT_BYTES:
            limit: dict[str, Any] = {"size": size, "most": MAX_EVENT_BYTES}
            raise PydanticCustomError("too_large", "has {size} bytes of JSON; the limit is {most}", limit)
        return event


class ParkedEventPayload(TenantPayload):
    """The payload of a command about one parked event."""

    is_operator_action: ClassVar[bool] = True

    consumer: Consumer
    event_id: Identifier


class ResubmitEvent(ParkedEventPayload):
    """Publish a parked event again, to its consumer only. It is not parked any more."""

    type: ClassVar[str] = "ResubmitEvent"


class DropEvent(ParkedEventPayload):
    """Delete a parked event."""

    type: ClassVar[str] = "DropEvent"
