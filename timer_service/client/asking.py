"""Asks the service's queries."""

import json
from collections.abc import Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client

from timer_service.client.errors import NoAnswerError, QueryError

_ERROR = "Nats-Service-Error"
_ERROR_CODE = "Nats-Service-Error-Code"


async def ask(connection: Client, subject: str, question: Mapping[str, Any], timeout_seconds: float) -> Any:
    """Return the answer to a query. Raises `QueryError` or `NoAnswerError`."""
    try:
        message = await connection.request(subject, json.dumps(question).encode(), timeout=timeout_seconds)
    except nats.errors.NoRespondersError as error:
        raise NoAnswerError("nobody answers queries: is the service running there?") from error
    except nats.errors.TimeoutError as error:
        raise NoAnswerError(f"no answer within {timeout_seconds} s") from error
    except nats.errors.Error as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error
    if not message.data:  # an error of the micro service's framework, such as an answer too large to send
        headers = message.headers or {}
        raise QueryError(headers.get(_ERROR_CODE, "INTERNAL"), headers.get(_ERROR, "the answer is empty"))
    answer = json.loads(message.data)
    if "error" in answer:
        raise QueryError.read(answer["error"])
    return answer
