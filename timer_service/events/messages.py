"""The wire shape of commands on events."""

from typing import ClassVar

from timer_service.core.message import Identifier, TenantPayload


class RetryEvent(TenantPayload):
    """Put a buried event back, with all its attempts before it."""

    type: ClassVar[str] = "RetryEvent"

    event_id: Identifier
