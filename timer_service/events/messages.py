"""The wire shape of commands on events."""

from typing import ClassVar

from timer_service.core.message import Identifier, TenantPayload


class RetryEvent(TenantPayload):
    """Publish a buried event at once, under the same id. All attempts are available again."""

    type: ClassVar[str] = "RetryEvent"

    event_id: Identifier
