"""The command about buried events."""

from typing import ClassVar

from timer_service.core.values.message import Identifier, TenantPayload


class RetryEvent(TenantPayload):
    """Publish a buried event now, under the same id. The count of attempts starts again at 0."""

    type: ClassVar[str] = "RetryEvent"
    is_operator_action: ClassVar[bool] = True

    event_id: Identifier
