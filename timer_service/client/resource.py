"""What the methods of the client for each kind of thing share."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, TypeVar

from timer_service.client.checks import check_identifier, given
from timer_service.client.connection import Connection
from timer_service.client.errors import ShortTraceback
from timer_service.client.models import UNSET, Outcome
from timer_service.client.view import View

_V = TypeVar("_V", bound=View)


class Resource:
    """The methods for one kind of thing. Arguments that are None are not sent."""

    _id: ClassVar[tuple[str, str]]
    """The field of messages with the id of a thing, and the argument of methods."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _send(
        self, message_type: str, tenant: str, name: str, timeout_seconds: float, data: Any = UNSET, /, **fields: Any
    ) -> Outcome:
        """Send a command about a thing. `data` may be None, which is a JSON value."""
        message = {**self._key(name), **given(**fields), **({} if data is UNSET else {"data": data})}
        with ShortTraceback():
            return await self._connection.send(message_type, tenant, message, timeout_seconds)

    async def _find(
        self, query: str, view: type[_V], tenant: str, name: str, timeout_seconds: float, /, **fields: Any
    ) -> _V | None:
        """Return a thing, or None if it does not exist."""
        with ShortTraceback():
            page = await self._connection.find(tenant, query, {**self._key(name), **fields}, timeout_seconds)
        return None if page is None else view.read(page)

    def _list(
        self, query: str, field: str, view: type[_V], tenant: str, timeout_seconds: float, /, **filters: Any
    ) -> AsyncIterator[_V]:
        """Iterate over the list `field` of every page of a query."""
        views = self._connection.rows(tenant, query, given(**filters), field, timeout_seconds)
        return (view.read(each) async for each in views)

    def _key(self, name: str) -> Mapping[str, str]:
        field, argument = self._id
        return {field: check_identifier(argument, name)}
