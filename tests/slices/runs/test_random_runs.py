import pytest

from tests.harness.clock import ManualClock
from tests.harness.random_runs import RandomRuns, check_events
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.runs import loader


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "many", "most"), [(0, 50, 99), (1, 50, 99), (2, 50, 99), (3, 1, 99), (4, 2, 3), (5, 3, 0)]
)
async def test_agrees_with_the_reference_evaluator(
    runs: Runs, seed: int, many: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands in any order and any batches make ready and skip the jobs that the reference evaluator finds."""
    monkeypatch.setattr(loader, "_MANY_JOBS", many)
    monkeypatch.setattr(loader, "_MOST_JOBS", most)
    random_runs = RandomRuns(seed, 12)
    random_runs.start(runs)
    while runs.broker.waiting:
        runs.broker.shuffle(random_runs.rng)
        await runs.consume(batch_size=random_runs.rng.choice([1, 4, 100]))
        assert await random_runs.found(runs) == random_runs.expected()
        random_runs.report(runs)
    await check_events(runs, random_runs)
