"""The storage that the streams share: the room of their account, and refusals for lack of room."""

from collections.abc import Collection, Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.faults import Answer, Fault
from timer_service.adapters.nats.streams import StreamInfo
from timer_service.core.ports.health import HEALTHY, Health, RecentFailure, worst
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Kind

_ACCOUNT = "INFO"
_DENIED_ACCOUNT = f'"$JS.API.{_ACCOUNT}"'.lower()
_REFUSED_SECONDS = 65
"""How long a refusal counts. Messages that wait for room are published again within a minute."""


class Storage:
    """The room of the streams beyond their own limits, as far as it is known.

    The account's room is known if the service may look it up. The room of the server's disk is known only by refusals.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._account: Mapping[str, Any] | None = None
        self._may_look_up = True
        self._refusals: dict[Kind, RecentFailure] = {}

    def denied(self, reason: str) -> bool:
        """Return whether an error of the server denies the look-up of the account. Then it is not tried again."""
        if _DENIED_ACCOUNT not in reason.lower():
            return False
        self._may_look_up = False
        return True

    def connection_lost(self) -> None:
        """Forget what the last server said. The next one may permit more."""
        self._may_look_up = True
        self._account = None

    async def look_up(self) -> None:
        """Look up the account. If that fails, nothing is known about its room."""
        if self._may_look_up:
            try:
                self._account = await request(self._client, _ACCOUNT)
            except (nats.errors.Error, JetStreamError, OSError):
                self._account = None

    def record(self, kind: Kind, answers: Collection[Answer]) -> None:
        """Record whether the broker had room for messages of one kind."""
        refused = next((answer for answer in answers if answer.fault is Fault.NO_STORAGE), None)
        failure = self._refusals.setdefault(kind, RecentFailure(_REFUSED_SECONDS))
        if refused is not None:
            name = "dead letters" if kind is Kind.DEAD_LETTER else "events"
            failure.record(f"the broker has no room for {name}, and commands need the same storage: {refused.reason}")
        elif any(answer.fault is None for answer in answers):
            failure.clear()

    def health(self, kind: Kind, info: StreamInfo | None) -> Health:
        """Return whether there is room for the messages of one kind. `info`: their stream, if it is known."""
        account = HEALTHY if info is None or self._account is None else check_account(self._account, info)
        if kind is not Kind.COMMAND:
            return account
        return worst(account, *(failure.health for failure in self._refusals.values()))


def check_account(account: Mapping[str, Any], info: StreamInfo) -> Health:
    """Return whether an account has room for more messages of a stream.

    With limits for each number of replicas, those of the stream's number count.
    """
    replicas, in_memory = info["config"]["num_replicas"], info["config"]["storage"] == "memory"
    tier = account["tiers"].get(f"R{replicas}", {}) if account.get("tiers") else account
    name, field = ("max_mem", "memory") if in_memory else ("max_file", "storage")
    used, limit = tier.get(field, 0), tier.get("limits", {}).get(f"max_{field}", 0)
    if limit <= 0 or used < limit - _least_room(limit):
        return HEALTHY
    return Health.down(
        f"the account of the streams is full: it has {used} of {name} = {limit} bytes; "
        "raise the limit, or delete messages that nobody needs"
    )


def _least_room(limit: int) -> int:
    """Return the bytes that must be free: for the largest message and at least 1 % of the limit, but at most 5 %."""
    return min(max(MAX_MESSAGE_BYTES, limit // 100), limit // 20)
