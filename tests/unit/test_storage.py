"""The room of an account, by its limits."""

from collections.abc import Mapping
from typing import Any

import pytest

from timer_service.adapters.nats.storage import check_account

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


def test_tiers() -> None:
    """With limits for each number of replicas, only those of the stream's number count."""
    tiers = {"tiers": {"R1": account(0, 10 * MIB), "R3": account(10 * MIB, 10 * MIB)}}
    assert [check_account(tiers, stream(replicas)).usable for replicas in (1, 3, 5)] == [True, False, True]


def test_memory() -> None:
    """A stream in memory needs room in memory, and only there."""
    assert check_account(account(10 * MIB, 10 * MIB), stream(storage="memory")).usable
    full = check_account(account(0, 10 * MIB, memory=MIB), stream(storage="memory"))
    assert (full.reason or "").startswith("the account of the streams is full: it has 1048576 of max_mem = 1048576")
