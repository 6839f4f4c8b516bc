"""Reads the answers of the service. Each function raises `TimerServiceError` if an answer has another form."""

import json
from collections.abc import Mapping
from typing import Any

from timer_service.client.errors import TimerServiceError


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TimerServiceError(f"the service sent an answer that is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise TimerServiceError("the service sent an answer that is not a JSON object")
    return found


def read_rows(answer: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list `name` in an answer."""
    found = answer.get(name)
    if not isinstance(found, list):
        raise TimerServiceError(f"the service sent an answer without the list {name}")
    return found
