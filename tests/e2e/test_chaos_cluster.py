"""A node of a three-node cluster is killed under a load of every slice."""

from pathlib import Path

import pytest

from tests.harness.load import Load
from tests.harness.load_check import check_load
from tests.harness.nats_cluster import NatsCluster
from tests.harness.processes import Service

_KILLS = 5
_LEADERS = [("TIMER_CMD", None), ("TIMER_CMD", "timer-service"), ("TIMER_EVT", None)]
"""Whose leader is killed, in turn."""


@pytest.mark.full
async def test_leaders_are_killed_under_load(tmp_path: Path) -> None:
    """When leaders of the streams or of the consumer are killed, nothing is lost and nothing fires early."""
    async with (
        NatsCluster(tmp_path / "nats") as cluster,
        Service(tmp_path / "service", ",".join(cluster.urls)),
        Load.running(cluster.urls, seed=5, writers=3) as load,
    ):
        for number in range(_KILLS):
            await load.until_answered(50)
            victim = cluster.nodes[await cluster.leader(*_LEADERS[number % len(_LEADERS)])]
            await victim.kill()
            await load.until_answered(50)
            await victim.start()
            for stream in ("TIMER_CMD", "TIMER_EVT"):
                await cluster.until_current(stream)
        # The user's own connection may be lost with a node, and with it replies.
        found = await check_load(load, seconds=90, all_replied=False)
    print(f"{_KILLS} leaders killed: {found}")


@pytest.mark.full
async def test_leaders_step_down_under_load(tmp_path: Path) -> None:
    """When leaders give up their role, the service goes on without a restart, and nothing is lost."""
    async with (
        NatsCluster(tmp_path / "nats") as cluster,
        Service(tmp_path / "service", ",".join(cluster.urls)),
        Load.running(cluster.urls, seed=1, writers=3) as load,
    ):
        for stream, consumer in _LEADERS:
            await cluster.leader(stream, consumer)
            await cluster.step_down(stream, consumer)
            await load.until_answered(50)
        found = await check_load(load, all_replied=False)
    print(f"{len(_LEADERS)} leaders stepped down: {found}")
