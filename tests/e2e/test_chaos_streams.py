"""A stream of the service is deleted or full. The service says so in /readyz, loses nothing, and recovers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import APIError

from tests.harness.load import instant
from tests.harness.load_user import LoadUser, now_ms
from tests.harness.nats_cluster import STREAMS
from tests.harness.processes import NatsServer, Service

CALLS = 200
FULL = pytest.mark.full
RECOVERY_SECONDS = 20
SMALL_STORE = 'port: 4222\njetstream { store_dir: "/data", max_file_store: 16MB }\n'


class Operator:
    """An operator of the streams, who can break and repair one of them."""

    def __init__(self, user: LoadUser, stream: str) -> None:
        self.js = user.js
        self.stream = stream
        self._config: StreamConfig

    async def delete(self) -> None:
        self._config = (await self.js.stream_info(self.stream)).config
        await self.js.delete_stream(self.stream)

    async def create(self) -> None:
        await self.js.add_stream(self._config)

    async def shrink(self) -> None:
        """Leave no room for another message."""
        info = await self.js.stream_info(self.stream)
        self._config = info.config
        await self.js.update_stream(info.config.evolve(max_bytes=info.state.bytes + 1))

    async def enlarge(self) -> None:
        await self.js.update_stream(self._config)

    async def fill_store(self) -> None:
        """Fill the storage of the whole server with another stream."""
        await self.js.add_stream(StreamConfig(name="FILLER", subjects=["filler"]))
        size = 512 * 1024
        while size > 16:
            try:
                await self.js.publish("filler", b"x" * size)
            except APIError:
                size //= 2

    async def free_store(self) -> None:
        await self.js.delete_stream("FILLER")


Step = Callable[[Operator], Awaitable[None]]


class Fault(NamedTuple):
    """How a stream becomes unusable, and usable again."""

    occur: Step
    repair: Step


FAULTS: Mapping[str, Fault] = {
    "deleted": Fault(Operator.delete, Operator.create),
    "full": Fault(Operator.shrink, Operator.enlarge),
    "no storage": Fault(Operator.fill_store, Operator.free_store),
}


@asynccontextmanager
async def unmanaged(folder: Path, broker: NatsServer) -> AsyncIterator[Service]:
    """Run a service that does not manage the streams. They exist already."""
    async with await nats.connect(broker.url) as operator:
        for name, subject in STREAMS.items():
            await operator.jetstream().add_stream(
                StreamConfig(
                    name=name, subjects=[subject], discard=DiscardPolicy.NEW, max_age=86_400, allow_atomic=True
                )
            )
    async with Service(folder, broker.url, TIMER_MANAGE_STREAMS="false") as service:
        yield service


async def until_not_ready(service: Service, flow: str) -> str:
    """Wait until /readyz is 503 because of a flow, `commands` or `events`. Return its reason."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        status, text = await service.page("/readyz")
        reason = str(json.loads(text).get(flow, "ok"))
        if status == 503 and reason != "ok":
            return reason
        assert time.monotonic() < deadline, f"/readyz says nothing about {flow}: {status} {text}"
        await asyncio.sleep(0.05)


async def until_fired(user: LoadUser, count: int) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while len({each.payload["serviceCallId"] for each in user.events if each.type == "DueTimeReached"}) < count:
            await asyncio.sleep(0.02)


async def until_dead_letters(user: LoadUser, count: int) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while (stored := await user.count_dead_letters()) < count:
            await asyncio.sleep(0.02)
    assert stored == count


@pytest.mark.parametrize("fault", [pytest.param("deleted", marks=FULL), "full", pytest.param("no storage", marks=FULL)])
async def test_timers_wait_for_the_event_stream(fault: str, tmp_path: Path) -> None:
    """While the event stream is unusable, /readyz says so and timers wait. They fire when the operator repairs it."""
    occur, repair = FAULTS[fault]
    async with (
        NatsServer(tmp_path / "nats", config=SMALL_STORE) as broker,
        unmanaged(tmp_path / "service", broker) as service,
        LoadUser.connect(broker.url, "acme") as user,
    ):
        operator = Operator(user, "TIMER_EVT")
        due = instant(now_ms() + 1_500)
        await asyncio.gather(
            *(user.publish("ScheduleTimer", serviceCallId=f"call-{number}", dueAt=due) for number in range(CALLS))
        )
        await user.until_handled()
        await occur(operator)
        reason = await until_not_ready(service, "events")
        assert (await service.page("/livez"))[0] == 200
        await repair(operator)
        await until_fired(user, CALLS)
        await service.until_page("/readyz", 200)
        assert len({each.id for each in user.events}) == CALLS
        for outcome in ("retried", "buried"):
            sample = f'timer_schedules_processed_total{{outcome="{outcome}",table="timer_schedules"}}'
            assert await service.metric(sample) == 0
    print(f"event stream {fault}: {reason}")


@pytest.mark.parametrize("fault", ["deleted", pytest.param("full", marks=FULL)])
async def test_dead_letters_wait_for_their_stream(fault: str, tmp_path: Path, broker: NatsServer) -> None:
    """While dead letters cannot be stored, /readyz says so. Commands are handled, and no dead letter is lost."""
    occur, repair = FAULTS[fault]
    async with unmanaged(tmp_path / "service", broker) as service, LoadUser.connect(broker.url, "acme") as user:
        operator = Operator(user, "TIMER_DLQ")
        await occur(operator)
        rejected = [await user.publish("ScheduleTimer", serviceCallId=f"bad-{number}") for number in range(20)]
        reason = await until_not_ready(service, "events")
        valid = await user.request("CancelTimer", serviceCallId="good")
        assert valid.outcomes == ["not_found"]
        assert [each.outcomes for each in rejected] == [["rejected"]] * len(rejected)
        await repair(operator)
        await until_dead_letters(user, len(rejected))
        await service.until_page("/readyz", 200)
    print(f"dead letter stream {fault}: {reason}")


@pytest.mark.parametrize(
    "stream", ["TIMER_EVT", pytest.param("TIMER_DLQ", marks=FULL), pytest.param("TIMER_CMD", marks=FULL)]
)
async def test_managed_stream_is_created_again(stream: str, tmp_path: Path, broker: NatsServer) -> None:
    """A service that manages its streams creates a deleted one again. Timers and rejected commands go on."""
    async with Service(tmp_path / "service", broker.url) as service, LoadUser.connect(broker.url, "acme") as user:
        due = instant(now_ms() + 1_000)
        await user.request("ScheduleTimer", serviceCallId="call-1", dueAt=due)
        await user.js.delete_stream(stream)
        async with asyncio.timeout(RECOVERY_SECONDS):
            rejected = await user.publish("ScheduleTimer", serviceCallId="bad")
            await rejected.replied.wait()
        await until_fired(user, 1)
        await service.until_page("/readyz", 200)
        assert rejected.outcomes == ["rejected"]
        await until_dead_letters(user, 1)
