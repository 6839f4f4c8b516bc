"""A signal that another session has locked holds up only its own firings."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.locks import LockedPostgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import Signals
from tests.harness.wiring import MAX_ATTEMPTS

LOCK_SIGNAL = "SELECT 1 FROM work_signals WHERE signal_id = 'signal-3' FOR UPDATE"
ADD_EVENT = """
INSERT INTO outbox (tenant_id, event_id, message, body, added_at, ordinal, state, available_at)
SELECT tenant_id, 'fired-' || firing_id, 'x', '{}', 0, 0, 'Waiting', 0 FROM work_signal_firings
WHERE signal_id = 'signal-3'
"""


@pytest.fixture
async def signals(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """Return the signals slice on PostgreSQL, with a firing of each of ten signals."""
    signals = Signals(locks.database, memory_broker, clock)
    for number in range(10):
        await signals.create(f"signal-{number}", item=f"item-{number}")
        await signals.transition(item=f"item-{number}")
    return signals


def others() -> list[str]:
    return [f"signal-{number}" for number in range(10) if number != 3]


@pytest.mark.parametrize("lock", [LOCK_SIGNAL, ADD_EVENT], ids=["signal", "event"])
async def test_a_firing_that_must_wait(signals: Signals, locks: LockedPostgres, clock: ManualClock, lock: str) -> None:
    """The firing of a locked signal waits with growing delays, and no attempt counts. The others are processed."""
    async with locks.locked(lock):
        await signals.run()
        assert sorted(signals.fired()) == others()
        for _ in range(MAX_ATTEMPTS + 3):
            clock.advance(minutes=2)
            await signals.run()
        assert sorted(signals.fired()) == others()
    clock.advance(minutes=2)
    await signals.run()
    assert sorted(signals.fired()) == sorted([*others(), "signal-3"])
    assert signals.metrics.given_up == {}
    assert [each["attempt"] for each in await signals.firings_of("signal-3")] == [1]


async def test_another_instance_has_all_firings(signals: Signals, locks: LockedPostgres) -> None:
    """The worker looks again soon, but not at once."""
    now = signals.clock.now()
    async with locks.locked("SELECT 1 FROM work_signal_firings FOR UPDATE"):
        done, next_at = await signals.firings.tick(now)
    assert done == 0
    assert next_at is not None
    assert now < next_at <= now + 100


async def test_commands_beside_a_locked_signal(signals: Signals, locks: LockedPostgres, clock: ManualClock) -> None:
    """The command on a locked signal waits, and the later ones of its tenant behind it. Other tenants are handled."""
    async with locks.locked(LOCK_SIGNAL):
        for number in range(10):
            signals.send("PauseWorkSignal", signalId=f"signal-{number}")
        signals.send("TransitionWorkItem", tenant="other", workItemId="item-1", to="blocked")
        await signals.consume()
        assert signals.metrics.commands["PauseWorkSignal", "paused"] == 3
        assert signals.metrics.commands["TransitionWorkItem", "transitioned"] == 11
    clock.advance(seconds=1)
    await signals.consume()
    assert signals.metrics.commands["PauseWorkSignal", "paused"] == 10
