"""The methods of the client for buried events: events that the service stopped trying to publish."""

from collections.abc import AsyncIterator

from timer_service.client.checks import check_identifier
from timer_service.client.connection import Connection
from timer_service.client.models import BuriedEvent, Outcome


class Events:
    """Methods for buried events, as `TimerClient.events`. They raise the same exceptions as `TimerClient`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def buried(self, tenant: str, *, timeout_seconds: float = 10) -> AsyncIterator[BuriedEvent]:
        """Iterate over the buried events of a tenant, oldest first."""
        views = self._connection.pages(tenant, "list-buried-events", {}, "events", timeout_seconds)
        return (BuriedEvent.read(view) async for view in views)

    async def retry(self, tenant: str, event_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Publish a buried event again, under the same id."""
        fields = {"eventId": check_identifier("event_id", event_id)}
        return await self._connection.send("RetryEvent", tenant, fields, timeout_seconds)
