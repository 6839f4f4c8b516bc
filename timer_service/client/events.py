"""Events that could not be published: the part of the client that is about them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from timer_service.client.arguments import check_identifier, check_tenant
from timer_service.client.link import Link
from timer_service.client.views import Outcome


@dataclass(frozen=True, slots=True)
class BuriedEvent:
    """An event that the service gave up to publish."""

    tenant: str
    event_id: str
    type: str
    about: Mapping[str, str]
    """The short texts of its payload: which run, which job."""
    added_at: datetime
    attempt: int
    last_error: str

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> "BuriedEvent":
        """Read one off the wire."""
        return cls(
            tenant=view["tenantId"],
            event_id=view["eventId"],
            type=view["eventType"],
            about=view["about"],
            added_at=datetime.fromisoformat(view["addedAt"]),
            attempt=view["attempt"],
            last_error=view["lastError"],
        )


class Events:
    """Speaks the contracts of buried events; `TimerClient.events` is one. Raises what `TimerClient` does."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def buried(self, tenant: str, *, timeout_seconds: float = 10) -> AsyncIterator[BuriedEvent]:
        """Iterate over a tenant's buried events, oldest first."""
        check_tenant(tenant)
        views = self._link.pages(tenant, "list-buried-events", {}, "events", timeout_seconds)
        return (BuriedEvent.read(view) async for view in views)

    async def retry(self, tenant: str, event_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Publish an event again at once, under the same id."""
        fields = {"eventId": check_identifier("event_id", event_id)}
        return await self._link.send(self._link.command("RetryEvent", tenant, fields), timeout_seconds)
