"""A service with another database than the one that reads the command stream."""

import time
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import NatsServer, Service

REMEDY = "stop the other service and delete the consumer (`nats consumer rm TIMER_CMD timer-service`)"


@pytest.mark.parametrize("is_running", [True, False])
@ON_SQLITE
async def test_other_database_is_refused(
    *, is_running: bool, tmp_path: Path, broker: NatsServer, user: User, service: Service
) -> None:
    """It ends with 1 and says what to do. When that is done, it handles every command that the stream still has."""
    due = {"call-1": int(time.time() * 1000) + 3_000}
    await user.schedule(due)
    await user.until_handled()
    if not is_running:
        await service.kill()
    other = Service(tmp_path / "other", broker.url)
    other.launch()
    assert await other.wait() == 1
    assert REMEDY in other.log.read_text()
    if is_running:
        await user.schedule(more := {"call-2": due["call-1"]})  # the refusal does not disturb the service
        await user.until_handled()
        due |= more
        assert (await service.page("/readyz"))[0] == 200
        await service.kill()
    await user.js.delete_consumer("TIMER_CMD", "timer-service")
    async with other:
        await user.until_stored("TIMER_EVT", len(due))
    assert check_fired(await user.fired(), due) == 0
