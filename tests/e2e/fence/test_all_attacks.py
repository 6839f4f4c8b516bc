"""Each kind of attack that a tenant behind the fence can make, beside another tenant that uses the service."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.attacked import HEADER, Attacked, Figures
from tests.harness.attacks import ATTACKS

SECONDS = float(os.environ.get("TIMER_TEST_ATTACK_SECONDS", "30"))
LONGEST_MS = 1_000
LATEST_MS = 500
MOST_MIB = 256
"""The default of TIMER_MEMORY_BUDGET."""


@pytest.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[Attacked]:
    async with Attacked.running(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def table() -> None:
    print(f"\n{HEADER}")


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("kind", ATTACKS)
async def test_attack_hurts_no_other_tenant(kind: str, attacked: Attacked, table: None) -> None:
    """Beside an attack of seconds, another tenant is served in time, in the memory of the budget."""
    figures = await attacked.attack(kind, SECONDS)
    print(figures.row(kind))
    check(figures)


def check(figures: Figures) -> None:
    assert figures.command_ms <= LONGEST_MS
    assert figures.query_ms <= LONGEST_MS
    assert figures.timer_ms <= LATEST_MS
    assert figures.peak_mib <= MOST_MIB
    assert not figures.unready
