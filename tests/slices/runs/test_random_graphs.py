import pytest

from tests.harness.clock import ManualClock
from tests.harness.random_runs import RandomRuns, check_events
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the needs slice over every store in turn."""
    return Runs(store, memory_broker, clock)


@pytest.mark.parametrize("seed", range(3))
async def test_agrees_with_a_plain_gate(runs: Runs, seed: int) -> None:
    """Of random runs, in whatever order and batches their commands come, those go that a plain gate lets go, once."""
    drawn = RandomRuns(seed, 12)
    drawn.start(runs)
    while runs.broker.waiting:
        runs.broker.shuffle(drawn.rng)
        await runs.consume(batch_size=drawn.rng.choice([1, 4, 100]))
        assert await drawn.seen(runs) == drawn.verdicts()
        drawn.report(runs)
    await check_events(runs, drawn)
