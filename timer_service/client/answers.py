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


def read_cursor(answer: Mapping[str, Any], last: str | None) -> str | None:
    """Return the cursor of the next page, or None after the last page. `last`: the cursor of this page."""
    cursor = answer.get("cursor")
    if cursor is None:
        return None
    if cursor == last or not isinstance(cursor, str):
        raise TimerServiceError("the service sent an answer with a wrong cursor")
    return cursor


def read_rows(answer: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list `name` in an answer."""
    found = answer.get(name)
    if not isinstance(found, list):
        raise TimerServiceError(f"the service sent an answer without the list {name}")
    return found
