"""Where a message goes: its kind, its tenant, its type and its topic. It imports nothing that takes long."""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

MAX_MESSAGE_BYTES = 1024 * 1024
"""The largest body of a message. Events and replies never exceed it, and every broker must accept it."""

TENANT_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
IDENTIFIER_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]{1,200}$"
TOPIC_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"

UNREADABLE = "~unreadable"
"""The part of an address that stands for a tenant or a message that cannot be part of one. No tenant has this name."""
BODY_OMITTED = "Timer-Body-Omitted"
"""The header of a dead letter without the body of its command."""


class Kind(StrEnum):
    """The kind of message that an address is for."""

    COMMAND = "cmd"
    EVENT = "evt"
    DEAD_LETTER = "dlq"
    QUERY = "qry"
    REQUEST = "wrk"
    """A request of a worker, which changes rows and gets a reply."""


class Address(NamedTuple):
    """The destination of a message, independent of the broker's syntax. `message` is the type in kebab case."""

    kind: Kind
    tenant: str
    message: str
    topic: str | None = None
    """The part by which consumers choose among the events of a type. Only events have one."""


@lru_cache(maxsize=1024)  # a type can be that of a user
def kebab(message_type: str) -> str:
    """Return a message type as an address part: `ScheduleTimer` -> `schedule-timer`, `a.b` -> `a-b`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", message_type).replace(".", "-").lower()
