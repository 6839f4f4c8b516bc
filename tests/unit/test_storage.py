"""The room of an account, by its limits."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from nats.aio.client import Client

from timer_service.adapters.nats.faults import STORED, Answer, Fault
from timer_service.adapters.nats.streams import Storage, check_account
from timer_service.core.values.message import Kind

MIB = 1024 * 1024


def account(storage: int, limit: int, memory: int = 0) -> dict[str, Any]:
    return {"storage": storage, "memory": memory, "limits": {"max_storage": limit, "max_memory": MIB}}


def stream(replicas: int = 1, storage: str = "file") -> Mapping[str, Any]:
    return {"config": {"num_replicas": replicas, "storage": storage}}


@pytest.mark.parametrize(
    ("used", "limit", "is_full"),
    [
        (10**15, -1, False),
        (10**15, 0, False),
        (950 * MIB, 1000 * MIB, False),
        (990 * MIB, 1000 * MIB, True),
        (48 * MIB, 50 * MIB, False),
        (49 * MIB, 50 * MIB, True),
        (MIB, 2 * MIB, False),
        (1.95 * MIB, 2 * MIB, True),
    ],
)
def test_room(used: int, limit: int, *, is_full: bool) -> None:
    """An account is full if it has less than 1 % left, or no room for a large message. -1 and 0 are no limits."""
    assert check_account(account(used, limit), stream()).usable is not is_full


def test_refusals_of_each_kind() -> None:
    """Commands need the same storage as dead letters and events. So each of them must be stored again first."""
    storage = Storage(cast("Client", None))
    refused = Answer(Fault.NO_STORAGE, "no room")
    reasons: list[str | None] = []
    for kind, answer in (
        (Kind.DEAD_LETTER, refused),
        (Kind.EVENT, STORED),
        (Kind.EVENT, refused),
        (Kind.DEAD_LETTER, Answer(Fault.MESSAGE)),
        (Kind.DEAD_LETTER, STORED),
        (Kind.EVENT, STORED),
    ):
        storage.record(kind, [answer])
        reasons.append(storage.health(Kind.COMMAND, stream()).reason)
    letters, events = (
        f"the broker has no room for {name}, and commands need the same storage: no room"
        for name in ("dead letters", "events")
    )
    assert reasons == [letters, letters, letters, letters, events, None]
    assert storage.health(Kind.EVENT, stream()).usable
