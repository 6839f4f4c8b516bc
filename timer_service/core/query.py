"""Queries: decode the request, call the slice, encode the reply. They read committed rows and change nothing."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from timer_service.core.broker import QueryReply
from timer_service.core.clock import Clock
from timer_service.core.codec import rejection_of
from timer_service.core.database import Database, Reader
from timer_service.core.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.health import OutageLog
from timer_service.core.message import MAX_MESSAGE_BYTES, Payload
from timer_service.core.rejection import error_body

log = logging.getLogger(__name__)


class QueryRoute(NamedTuple):
    """A query: its name, the models of its request and reply, and the function that answers it."""

    name: str
    request: type[Payload]
    reply: type[Payload]
    answer: Callable[[Reader, str, Any, int], Awaitable[Mapping[str, Any]]]
    """Returns the reply. The arguments are a reader, the tenant, the request and the current time."""


def omit_none(**fields: Any) -> Mapping[str, Any]:
    """Return the fields that are not None. A reply omits a field whose value is not known."""
    return {name: value for name, value in fields.items() if value is not None}


class Queries:
    """The queries of every slice."""

    def __init__(
        self, database: Database, clock: Clock, routes: Sequence[QueryRoute], outages: OutageLog | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._outages = outages or OutageLog()
        self._routes = {route.name: route for route in routes}

    @property
    def names(self) -> Sequence[str]:
        """The names of the queries."""
        return list(self._routes)

    async def answer(self, name: str, tenant: str, body: bytes) -> QueryReply:
        """Answer one query of a tenant. An error is a reply too, so this raises nothing."""
        route = self._routes[name]
        try:
            request = _read(route.request, body)
            reply = to_json(await route.answer(self._database.queries, tenant, request, self._clock.now()))
            if len(reply) > MAX_MESSAGE_BYTES:
                message = f"the reply would have {len(reply)} bytes; the limit is {MAX_MESSAGE_BYTES}"
                raise Rejection(Code.TOO_LARGE, message)  # noqa: TRY301 - handled like any other rejection
            return QueryReply(reply)
        except Rejection as rejection:
            return _error(rejection)
        except DatabaseUnavailableError as error:
            self._outages.record_failure(str(error))
            log.debug("query failed: the database is unavailable", extra={"query": name, "reason": str(error)})
            return _error(Rejection(Code.INTERNAL, "the database is not available at the moment"))
        except Exception:
            log.exception("query failed", extra={"query": name})
            return _error(Rejection(Code.INTERNAL, "the query failed; see the log of the service"))


def _read(model: type[Payload], body: bytes) -> Payload:
    try:
        return model.model_validate(from_json(body or b"{}", allow_inf_nan=False), by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the query", error) from error
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"the body is not JSON: {error}") from error


def _error(rejection: Rejection) -> QueryReply:
    return QueryReply(to_json({"error": error_body(rejection)}), rejection.code, rejection.message)
