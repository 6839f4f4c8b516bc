"""Whole scans of the clock repair."""

from tests.harness.clock import ManualClock
from timer_service.core.service.clock_repair import ClockRepair

_PAUSE_MS = 50
"""The pause between the passes of one scan."""


async def scan(repair: ClockRepair, clock: ManualClock) -> int:
    """Run the passes of one scan. Return how many rows were repaired."""
    repaired = 0
    while True:
        done, next_at = await repair.tick(clock.now())
        repaired += done
        if next_at != clock.now() + _PAUSE_MS:
            return repaired
