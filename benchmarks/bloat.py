"""The growth of the timer table and its indexes on PostgreSQL because of dead rows, and the work of autovacuum."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
from nats.aio.client import Client

from benchmarks.harness import Publisher, Rig, read_events, stored_events, unhandled, until_none
from benchmarks.processes import BenchmarkError, Fleet
from benchmarks.result import Result
from benchmarks.stores import PostgresStore
from benchmarks.timers import Timer, faults, now, sleep_until

_WAVES = 10
_SAMPLE_SECONDS = 0.5
_WAIT_SECONDS = 75  # autovacuum checks a table once a minute
_TABLE = "timer_schedules"
_COUNTS = f"""
SELECT n_dead_tup AS dead, n_live_tup AS live, n_tup_upd AS updates, n_tup_hot_upd AS hot_updates,
    autovacuum_count AS autovacuums, pg_relation_size(relid) AS {_TABLE}
FROM pg_stat_user_tables WHERE relname = '{_TABLE}'
"""
_INDEXES = f"""
SELECT indexrelname AS name, pg_relation_size(indexrelid) AS size FROM pg_stat_user_indexes WHERE relname = '{_TABLE}'
"""
_MIB = 2**20

Sample = Mapping[str, float]
"""The row counts, and the sizes in bytes by the names of the table and its indexes."""


async def bloat(rig: Rig, size: int) -> Result:
    """Schedule waves of timers, each after the last has fired. Measure the rates, the dead rows and the sizes."""
    assert isinstance(rig.store, PostgresStore)
    connection = rig.store.connection
    waves: list[list[Timer]] = []
    rates: list[float] = []
    lead_ms = 5000 + size // _WAVES  # any machine can store a thousand timers a second
    async with rig.broker() as client:
        async with rig.service() as service, _sampling(connection) as samples:
            for number in range(_WAVES):
                due_at = now() + lead_ms
                waves.append([Timer("bench", f"call-{number}-{index}", due_at) for index in range(size // _WAVES)])
                spare_ms = due_at - await _store(rig, client, service, waves[-1])
                rates.append(await _fire(client, service, waves))
                lead_ms = 2000 + 2 * (lead_ms - spare_ms)
            await asyncio.sleep(_WAIT_SECONDS)
        events = await read_events(client)
    timers = [timer for wave in waves for timer in wave]
    figures = {
        "timers": len(timers),
        "waves": _WAVES,
        "timers/s, first wave": rates[0],
        "timers/s, last wave": rates[-1],
    }
    figures |= _counts(samples) | _sizes(samples, await _rewritten(connection))
    return Result(figures, faults(timers, events), samples)


async def _store(rig: Rig, client: Client, service: Fleet, wave: list[Timer]) -> int:
    """Schedule a wave. Return the time when the service had handled all commands."""
    publisher = Publisher(client)
    await publisher.open()
    for timer in wave:
        await publisher.send(timer)
    await publisher.flush()
    await until_none(service, partial(unhandled, rig, client))
    if now() >= wave[0].due_at:
        raise BenchmarkError(f"this machine did not store {len(wave)} timers before they were due")
    return now()


async def _fire(client: Client, service: Fleet, waves: list[list[Timer]]) -> float:
    """Wait until the last wave has fired. Return the timers per second."""
    due_at = waves[-1][0].due_at
    total = sum(map(len, waves))

    async def missing() -> int:
        return total - await stored_events(client)

    await sleep_until(due_at)
    return len(waves[-1]) / (await until_none(service, missing) - due_at / 1000)


@asynccontextmanager
async def _sampling(connection: asyncpg.Connection) -> AsyncIterator[list[Sample]]:
    """Collect samples until the block ends."""
    samples: list[Sample] = []
    stop = asyncio.Event()

    async def sample() -> None:
        while not stop.is_set():
            samples.append(await _sample(connection))
            await asyncio.sleep(_SAMPLE_SECONDS)

    sampling = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        stop.set()
        await sampling


async def _sample(connection: asyncpg.Connection) -> Sample:
    counts = await connection.fetchrow(_COUNTS)
    if counts is None:
        raise BenchmarkError(f"the table {_TABLE} does not exist")
    indexes = await connection.fetch(_INDEXES)
    return {"at": time.time(), **dict(counts), **{index["name"]: index["size"] for index in indexes}}


async def _rewritten(connection: asyncpg.Connection) -> Sample:
    """Rewrite the table and its indexes with VACUUM FULL. Return a sample."""
    await connection.execute(f"VACUUM FULL {_TABLE}")
    return await _sample(connection)


def _counts(samples: list[Sample]) -> dict[str, float]:
    return {
        "dead rows, maximum": max(sample["dead"] for sample in samples),
        f"dead rows, {_WAIT_SECONDS} s after the last wave": samples[-1]["dead"],
        "live rows at the end": samples[-1]["live"],
        "updates": samples[-1]["updates"],
        "HOT updates, which do not change indexes": samples[-1]["hot_updates"],
        "runs of autovacuum": samples[-1]["autovacuums"],
    }


def _sizes(samples: list[Sample], rewritten: Sample) -> dict[str, float]:
    largest = {name: max(sample[name] for sample in samples) for name in rewritten if name.startswith(_TABLE)}
    grown = sorted(name for name, size in largest.items() if size > samples[0][name])
    sizes = {}
    for name in grown:
        sizes[f"{name}, maximum, MiB"] = largest[name] / _MIB
        sizes[f"{name}, after VACUUM FULL, MiB"] = rewritten[name] / _MIB
    return sizes
