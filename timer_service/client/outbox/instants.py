"""Makes a command independent of when it is sent, and of how often. Pure."""

import secrets
from collections.abc import Mapping
from typing import Any

from timer_service.core.values.duration import parse_duration
from timer_service.core.values.instant import format_instant

_INSTANTS = {
    "ScheduleTimer": {"dueIn": "dueAt"},
    "StartWorkflow": {"startIn": "startAt", "deadlineIn": "deadlineAt"},
}
"""The durations of a message that count from when the broker stores it, and the instants that replace them."""


def fix(message_type: str, fields: Mapping[str, Any], now: int) -> Mapping[str, Any]:
    """Return the fields of a command that is stored at `now` (Unix milliseconds) and sent later, perhaps twice.

    Durations count from `now`, and a message to a workflow has an id. `RetryWorkflow.deadlineIn` has no such form.
    """
    names = _INSTANTS.get(message_type, {})
    fixed = {
        names.get(name, name): format_instant(now + parse_duration(value)) if name in names else value
        for name, value in fields.items()
    }
    if message_type == "SendToWorkflow":
        fixed.setdefault("messageId", secrets.token_hex(16))
    return fixed
