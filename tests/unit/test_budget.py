"""The shares of the memory budget, as docs/performance.md gives them."""

import pytest

from timer_service.config import Config
from timer_service.core.values.budget import DEFAULT_BUDGET, MIB, Budget

SHARES = {
    "batch": 2 * MIB,
    "part": MIB // 2,
    "claim": 2 * MIB,
    "queries": 16 * MIB,
    "requests": 16 * MIB,
    "portion": 8 * MIB,
}


@pytest.mark.parametrize("size", [1, 2, 8])
def test_shares(size: int) -> None:
    """The shares of a budget grow with it. Without a setting, a process may use 256 MiB."""
    assert Budget.of(size * 256 * MIB)._asdict() == {name: size * share for name, share in SHARES.items()}
    assert Budget.of(Config().memory_budget) == DEFAULT_BUDGET == Budget.of(256 * MIB)
