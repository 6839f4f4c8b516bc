"""Queries: request -> slice -> answer. They read what is committed and change nothing."""

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
from timer_service.core.message import MAX_MESSAGE_BYTES, Payload
from timer_service.core.rejection import error_body

log = logging.getLogger(__name__)


_LARGEST_ANSWER = MAX_MESSAGE_BYTES


class QueryRoute(NamedTuple):
    """A query's name, its request, its reply, and what answers it: given a reader, the tenant, the request and now."""

    name: str
    request: type[Payload]
    reply: type[Payload]
    answer: Callable[[Reader, str, Any, int], Awaitable[Mapping[str, Any]]]


def known(**fields: Any) -> Mapping[str, Any]:
    """Return fields of an answer without those that are None: what is not known is left out."""
    return {name: value for name, value in fields.items() if value is not None}


class Queries:
    """Answers the queries of every slice."""

    def __init__(self, database: Database, clock: Clock, routes: Sequence[QueryRoute]) -> None:
        self._database = database
        self._clock = clock
        self._routes = {route.name: route for route in routes}

    @property
    def names(self) -> Sequence[str]:
        """What can be asked."""
        return list(self._routes)

    async def answer(self, name: str, tenant: str, body: bytes) -> QueryReply:
        """Answer one query on behalf of a tenant; a fault is an answer too."""
        route = self._routes[name]
        try:
            question = _read(route.request, body)
            body = to_json(await route.answer(self._database.queries, tenant, question, self._clock.now()))
            if len(body) > _LARGEST_ANSWER:
                message = f"the answer would have {len(body)} bytes; at most {_LARGEST_ANSWER} can be sent"
                raise Rejection(Code.TOO_LARGE, message)  # noqa: TRY301 - answered like any other
            return QueryReply(body)
        except Rejection as rejection:
            return _error(rejection)
        except DatabaseUnavailableError as error:
            log.warning("query not answered", extra={"query": name, "reason": str(error)})
            return _error(Rejection(Code.INTERNAL, "the database is not available at the moment"))
        except Exception:
            log.exception("query failed", extra={"query": name})
            return _error(Rejection(Code.INTERNAL, "the query failed; the service's log says why"))


def _read(model: type[Payload], body: bytes) -> Payload:
    try:
        return model.model_validate(from_json(body or b"{}", allow_inf_nan=False), by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the query", error) from error
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"the body is not JSON: {error}") from error


def _error(rejection: Rejection) -> QueryReply:
    return QueryReply(to_json({"error": error_body(rejection)}), rejection.code, rejection.message)
