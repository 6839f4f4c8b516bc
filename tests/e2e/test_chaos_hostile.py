"""Hostile and random messages beside a good tenant: each one ends in a counted outcome, and nobody waits for it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.harness.hostile import KINDS, LARGE_KINDS, flood, fuzz
from tests.harness.load import instant
from tests.harness.load_user import LoadUser, now_ms
from tests.harness.memory import MIB, peak_bytes
from tests.harness.nats_client import read_headers
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_nats import RawMessage, RawNats

LONGEST_WAIT_MS = 1_000
LONGEST_WAIT_IN_SHORT_SUITE_MS = 5_000
"""The short suite runs three tests at a time on two cores. `make soak` runs one."""
MOST_BYTES = (256 + 32) * MIB
"""The default of TIMER_MEMORY_BUDGET, and a tolerance for memory that Python returns late."""
SHORT = 2_000
_COUNTED = "timer_commands_received_total{"
_HOUR_MS = 3_600_000


async def count_outcomes(service: Service) -> Counter[str]:
    """Return how many commands ended as `rejected`, and how many were `accepted`, with any other outcome."""
    _, text = await service.page("/metrics")
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith(_COUNTED):
            counts["rejected" if 'outcome="rejected"' in line else "accepted"] += int(float(line.rpartition(" ")[2]))
    return counts


async def check_outcomes(user: LoadUser, service: Service) -> int:
    """Wait until every stored command has one outcome, and each rejected one a dead letter. Return their number."""
    stored = (await user.js.stream_info("TIMER_CMD")).state.last_seq
    async with asyncio.timeout(60):
        while (counts := await count_outcomes(service)).total() < stored:
            await asyncio.sleep(0.05)
        while (await user.js.stream_info("TIMER_DLQ")).state.messages < counts["rejected"]:
            await asyncio.sleep(0.05)
    headers = await read_headers(user.js, "TIMER_DLQ")
    letters = Counter(int(each["Timer-Source-Sequence"]) for each in headers)
    found = f"{stored} stored, {letters.total()} dead letters, {counts}"
    assert counts.total() == stored, found
    assert counts["rejected"] == letters.total() == len(letters), found
    assert letters.keys() <= set(range(1, stored + 1)) - {sent.sequence for sent in user.sent}, found
    return stored


class GoodTenant:
    """A tenant that schedules and cancels timers, one after the other, while others misbehave."""

    def __init__(self, user: LoadUser) -> None:
        self._user = user
        self.waits_ms: list[float] = []
        self._stopping = False

    def stop(self) -> None:
        """End the work after the current timer. A cancellation could be lost in the driver."""
        self._stopping = True

    async def work(self) -> None:
        for number in count():
            if self._stopping:
                return
            call = f"call-{number}"
            await self._send("scheduled", "ScheduleTimer", serviceCallId=call, dueAt=instant(now_ms() + _HOUR_MS))
            await self._send("cancelled", "CancelTimer", serviceCallId=call)
            await asyncio.sleep(0.02)

    async def _send(self, outcome: str, message_type: str, **payload: str) -> None:
        sent = await self._user.request(message_type, seconds=60, **payload)
        assert sent.outcomes == [outcome]
        self.waits_ms.append(sent.replies[0].at_ms - sent.stored_ms)


async def publish_and_check(
    broker: NatsServer, service: Service, messages: Iterable[RawMessage], longest_wait_ms: int
) -> str:
    """Publish messages beside a good tenant. Assert that every stored one ended and that nobody waited for them."""
    async with RawNats.connect(broker.port) as hostile, LoadUser.connect(broker.url, "good") as user:
        good = GoodTenant(user)
        working = asyncio.create_task(good.work())
        await hostile.publish(messages)
        await _until_handled(service, (await user.js.stream_info("TIMER_CMD")).state.last_seq, working)
        good.stop()
        await working
        stored = await check_outcomes(user, service)
        assert (await service.page("/readyz"))[0] == 200
    peak = peak_bytes(service.running.pid)
    slowest = max(good.waits_ms)
    found = (
        f"{stored} messages ended; {len(good.waits_ms)} good commands, the slowest after {slowest:.0f} ms; "
        f"peak memory {peak / MIB:.0f} MiB"
    )
    assert slowest <= longest_wait_ms, found
    assert peak <= MOST_BYTES, found
    return found


async def _until_handled(service: Service, number: int, working: asyncio.Task[None]) -> None:
    """Wait until `number` commands have an outcome. Those of the good tenant go on meanwhile."""
    while (await count_outcomes(service)).total() < number:
        if working.done():
            working.result()  # raises what ended it
        await asyncio.sleep(0.05)


def _flood(kinds: Mapping[str, Callable[[int], RawMessage]], short: int, full: int) -> list[object]:
    """Return the parameters of a test: all kinds together in the short suite, each kind by itself in `make soak`."""
    marks = [pytest.mark.full, pytest.mark.timeout(1800)]
    together = pytest.param(kinds, short, id=f"all, {short} of each")
    return [together, *(pytest.param({name: kinds[name]}, full, id=name, marks=marks) for name in kinds)]


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "each"), [*_flood(KINDS, 100, 20_000), *_flood(LARGE_KINDS, 5, 500)])
@ON_SQLITE
async def test_flood_of_hostile_messages(
    kinds: Mapping[str, Callable[[int], RawMessage]], each: int, broker: NatsServer, service: Service
) -> None:
    """A flood of hostile messages ends. It delays no command of another tenant by more than 1 s, in little memory."""
    longest = LONGEST_WAIT_MS if len(kinds) == 1 else LONGEST_WAIT_IN_SHORT_SUITE_MS
    found = await publish_and_check(broker, service, flood(kinds, each), longest)
    print(f"{len(kinds)} kinds, {each} of each: {found}")


@pytest.mark.parametrize(
    "number", [SHORT, pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.timeout(3 * 3600)])]
)
@ON_SQLITE
async def test_random_messages(number: int, broker: NatsServer, service: Service) -> None:
    """Random bytes, headers, subjects and sizes each end in a counted outcome."""
    longest = LONGEST_WAIT_IN_SHORT_SUITE_MS if number == SHORT else LONGEST_WAIT_MS
    found = await publish_and_check(broker, service, fuzz(number, number), longest)
    print(f"{number} random messages: {found}")
