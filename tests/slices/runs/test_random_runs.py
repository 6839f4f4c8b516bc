import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.random_runs import RandomRuns, check_events
from tests.harness.runs import Runs
from timer_service.core.ports.database import Database
from timer_service.runs import loader
from timer_service.runs import store as store_of_runs


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "many", "most"), [(0, 50, 99), (1, 1, 99), (2, 2, 3), (3, 3, 0)])
async def test_agrees_with_the_reference_evaluator(
    store: Database,
    seed: int,
    many: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reports in any order and any batches make ready and skip the jobs that the reference evaluator finds."""
    monkeypatch.setattr(store_of_runs, "MANY_JOBS", many)
    monkeypatch.setattr(loader, "MOST_JOBS", most)
    random_runs = RandomRuns(seed, 12)
    runs = Runs(store, MemoryBroker(), ManualClock(), batch_size=random_runs.rng.choice([1, 4, 100]))
    random_runs.start(runs)
    is_reported = True
    while is_reported:
        await runs.consume()
        assert await random_runs.found(runs) == random_runs.expected()
        is_reported = random_runs.report(runs)
    await check_events(runs, random_runs)
