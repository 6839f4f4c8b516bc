"""The mistakes of a tenant, beside another tenant that uses the service. `make soak-short` makes each for a moment."""

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from soak.flooded import HEADER, Flooded
from soak.mistakes import MISTAKES
from tests.e2e.conftest import ON_SQLITE
from tests.harness.hostile import KINDS, LARGE_KINDS, flood, fuzz
from tests.harness.load_user import LoadUser
from tests.harness.memory import MIB, peak_bytes
from tests.harness.nats_client import read_headers
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_nats import RawNats

SECONDS = float(os.environ.get("TIMER_TEST_FLOOD_SECONDS", "30"))
LATEST_MS = 500
LONGEST_IN_SHORT_SUITE_MS = 15_000
"""The short suite runs two tests at a time on two cores. `make soak` runs one."""
MOST_MIB = 256
"""The default of TIMER_MEMORY_BUDGET."""
_COUNTED = "timer_commands_received_total{"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_moments_of_mistakes_hurt_no_other_tenant(tmp_path: Path) -> None:
    """Beside each mistake, another tenant is served, in the memory of the budget, and the service is ready."""
    async with Flooded.running(tmp_path) as flooded:
        for name in MISTAKES:
            figures = await flooded.flood(name, 0.5)
            row = f"\n{HEADER}\n{figures.row(name)}"
            assert max(figures.command_ms, figures.query_ms, figures.timer_ms) <= LONGEST_IN_SHORT_SUITE_MS, row
            assert (figures.unready, figures.peak_mib <= MOST_MIB) == ("", True), row


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("name", MISTAKES)
async def test_mistake_hurts_no_other_tenant(name: str, tmp_path: Path) -> None:
    """Beside a mistake that goes on, another tenant is served in time, in the memory of the budget."""
    async with Flooded.running(tmp_path) as flooded:
        figures = await flooded.flood(name, SECONDS)
    row = f"\n{HEADER}\n{figures.row(name)}"
    print(row)
    longest = MISTAKES[name].longest_ms
    assert max(figures.command_ms, figures.query_ms) <= longest, row
    assert figures.timer_ms <= max(LATEST_MS, longest - 500), row
    assert (figures.unready, figures.peak_mib <= MOST_MIB) == ("", True), row


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_command_beside_100000_commands(tmp_path: Path) -> None:
    """While a tenant publishes 100,000 commands, a command of another tenant is handled within 2 s."""
    async with Flooded.running(tmp_path) as flooded:
        figures = await flooded.flood("a loop of timers", 200, most=100_000)
    print(f"\n{HEADER}\n{figures.row('100,000 commands')}")
    assert figures.sent == 100_000
    assert figures.command_ms <= 2_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [2_000, pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.timeout(3 * 3600)])]
)
@ON_SQLITE
async def test_garbage_ends_in_counted_outcomes(number: int, broker: NatsServer, service: Service) -> None:
    """Each stored message ends in one counted outcome, each rejected one in a dead letter, in little memory."""
    async with RawNats.connect(broker.port) as hostile, LoadUser.connect(broker.url, "good") as user:
        await hostile.publish(flood(KINDS, number // 100))
        await hostile.publish(flood(LARGE_KINDS, min(number // 400, 500)))
        await hostile.publish(fuzz(number, number))
        assert (await user.request("CancelTimer", seconds=60, serviceCallId="x")).outcomes == ["not_found"]
        stored = (await user.js.stream_info("TIMER_CMD")).state.last_seq
        async with asyncio.timeout(number / 100 + 60):
            while (counts := await count_outcomes(service)).total() < stored:
                await asyncio.sleep(0.05)
            while (await user.js.stream_info("TIMER_DLQ")).state.messages < counts["rejected"]:
                await asyncio.sleep(0.05)
        letters = Counter(int(each["Timer-Source-Sequence"]) for each in await read_headers(user.js, "TIMER_DLQ"))
    print(f"{stored} messages, {letters.total()} dead letters")
    assert (counts.total(), counts["rejected"]) == (stored, len(letters))
    assert letters.total() == len(letters)
    assert peak_bytes(service.running.pid) / MIB <= MOST_MIB + 32  # Python returns memory late
    assert (await service.page("/readyz"))[0] == 200


async def count_outcomes(service: Service) -> Counter[str]:
    """Return how many commands ended as `rejected`, and how many were `accepted`, with any other outcome."""
    _, text = await service.page("/metrics")
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith(_COUNTED):
            counts["rejected" if 'outcome="rejected"' in line else "accepted"] += int(float(line.rpartition(" ")[2]))
    return counts
