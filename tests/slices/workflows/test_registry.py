"""Which workers are recorded: how many of a tenant, and how much of each."""

from typing import Any

import pytest

from tests.harness.clock import NOW
from tests.harness.workflows import Workflows
from timer_service.workflows.protocol import PollTasks
from timer_service.workflows.tasks import registry
from timer_service.workflows.tasks.registry import WorkerRegistry


class Site:
    """A registry whose passes a test takes."""

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        self.seconds = 0.0
        self.registry = WorkerRegistry(workflows.parts, lambda: self.seconds)

    async def poll(self, *workers: str, tenant: str = "acme", **fields: Any) -> None:
        """Record polls and write them. The next ones come 10 seconds later."""
        for each in workers:
            poll = PollTasks(**{"worker_id": each, "types": ["order"], "slots": 1, **fields})
            self.registry.record(tenant, each, poll)
        while (await self.registry.tick(0)).next_at is not None:
            pass
        self.seconds += 10
        self.workflows.clock.advance(seconds=10)

    async def stored(self) -> list[str]:
        """Return the workers with rows, in order of their keys."""
        return [row["worker_id"] for row in await self.workflows.all_rows("workflow_workers")]


@pytest.fixture
def site(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(registry, "MOST_WORKERS", 4)
    return Site(workflows)


async def test_workers_are_recorded(site: Site) -> None:
    """A poll writes what the worker executes. Other requests write when it was seen, at most every 10 s."""
    await site.poll("w-1", name="host-1", slots=7)
    assert site.workflows.worker_wakes == [("workflow-workers", NOW + 1000)]
    (first,) = await site.workflows.all_rows("workflow_workers")
    assert (first["name"], first["types"], first["slots"]) == ("host-1", '["order"]', 7)
    site.seconds -= 1
    for worker, seconds, later in (("unknown", 0, 0), ("w-1", 1, 0), ("w-1", 1, 11_000)):
        site.registry.record("acme", worker)
        await site.registry.tick(0)
        (row,) = await site.workflows.all_rows("workflow_workers")
        assert (row["first_seen_at"], row["seen_at"]) == (first["seen_at"], first["seen_at"] + later)
        site.seconds += seconds
        site.workflows.clock.advance(seconds=seconds)
    await site.poll("w-1", tenant="zeta")
    await site.poll("w-1", queue="eu")
    site.registry.record("acme", "w-1")
    await site.registry.tick(0)
    ours, theirs = await site.workflows.all_rows("workflow_workers")
    assert (ours["queue"], ours["seen_at"] - theirs["seen_at"]) == ("eu", 20_000)


async def test_workers_that_were_seen_last_are_kept(site: Site) -> None:
    """A tenant that invents workers has a limited number of rows. Those of other tenants stay."""
    await site.poll("w0", tenant="other")
    await site.poll("a", "b", "c")
    await site.poll("a")
    await site.poll("d", "e")
    kept = set(await site.stored())
    assert kept >= {"a", "d", "e", "w0"}
    assert len(kept) == 5
    await site.poll(*(f"w{number}" for number in range(20)))
    await site.poll(*(f"w{number}" for number in range(20, 30)))
    assert len(await site.stored()) == 5
    assert "w0" in await site.stored()


async def test_rows_have_a_limited_size(site: Site) -> None:
    """The types of a worker are stored up to 12 KiB. 100 types of 100 ASCII characters fit."""
    ascii_types = [f"{number:0100}" for number in range(100)]
    await site.poll("ascii", types=ascii_types)
    await site.poll("emoji", types=["\N{GRINNING FACE}" * 90 + f"{number:03}" for number in range(100)])
    workers = {each["workerId"]: each for each in (await site.workflows.ask("list-workers"))["workers"]}
    assert workers["ascii"]["types"] == ascii_types
    assert len(workers["emoji"]["types"]) == 33
    assert all(len(row["types"].encode()) <= 12 * 1024 for row in await site.workflows.all_rows("workflow_workers"))


async def test_rows_that_wait_have_a_limited_size(workflows: Workflows) -> None:
    """A tenant has at most 1 MiB of rows that wait to be written. Workers beyond are recorded at a later poll."""
    site = Site(workflows)
    types = [f"{number:0100}" for number in range(100)]
    names = [f"w{number:03}" for number in range(150)]
    await site.poll(*names, types=types)
    assert 90 < len(await site.stored()) < 110
    site.seconds -= 5  # those that were written are known for 10 seconds
    await site.poll(*names, types=types)
    assert len(await site.stored()) == 150
