import pytest

from tests.harness.clock import ManualClock
from tests.harness.random_runs import RandomRuns, check_events
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_agrees_with_the_reference_evaluator(runs: Runs, seed: int) -> None:
    """Commands in any order and any batches make ready and skip the jobs that the reference evaluator finds."""
    random_runs = RandomRuns(seed, 12)
    random_runs.start(runs)
    while runs.broker.waiting:
        runs.broker.shuffle(random_runs.rng)
        await runs.consume(batch_size=random_runs.rng.choice([1, 4, 100]))
        assert await random_runs.found(runs) == random_runs.expected()
        random_runs.report(runs)
    await check_events(runs, random_runs)
