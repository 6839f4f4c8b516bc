"""`python -m benchmarks [SCENARIO ...] [--full] [--sync ...] [--store ...] [--instances N]`."""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import SYNC_INTERVALS, Rig
from benchmarks.processes import BenchmarkError
from benchmarks.report import RESULTS, Result, setting, show, show_setting, write
from benchmarks.scenarios import SCENARIOS
from benchmarks.stores import STORES


def main() -> int:
    """Run what was asked for; return 1 if anything came out missing, doubled or early."""
    asked = _arguments()
    RESULTS.mkdir(exist_ok=True)
    try:
        facts = setting(asked.sync, asyncio.run(_store_facts(asked.store)), asked.instances)
    except BenchmarkError as error:
        sys.exit(str(error))
    show_setting(facts)
    results = []
    for name in asked.scenarios:
        results.append(asyncio.run(_run(name, asked)))
        show(results[-1])
    print(f"written to {write(facts, results)}")
    return int(any(result.problems for result in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the service.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"some of: {', '.join(SCENARIOS)}")
    parser.add_argument("--full", action="store_true", help="the real sizes; takes minutes")
    parser.add_argument(
        "--sync",
        choices=SYNC_INTERVALS,
        default="always",
        help="when the broker syncs to disk: before each acknowledgement, as the embedded server does (default), "
        "or every two minutes, as nats-server does when nothing is said",
    )
    parser.add_argument("--store", choices=STORES, default="sqlite", help="where the timers are kept")
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="of the service, on one database")
    asked = parser.parse_args()
    if unknown := set(asked.scenarios) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if asked.instances < 1:
        parser.error("there has to be an instance")
    if asked.instances > 1 and asked.store == "sqlite":
        parser.error("SQLite is for one instance; several need --store postgres")
    for name in asked.scenarios:
        if asked.store not in (stores := SCENARIOS[name].stores):
            parser.error(f"{name} has nothing to measure on {asked.store}; add --store {' or '.join(stores)}")
    asked.scenarios = asked.scenarios or [name for name, each in SCENARIOS.items() if asked.store in each.stores]
    return asked


async def _run(name: str, asked: argparse.Namespace) -> Result:
    scenario = SCENARIOS[name]
    try:
        with _new_folder(name) as folder:
            async with STORES[asked.store](folder) as store:
                rig = Rig(folder, asked.sync, store, asked.instances)
                return await scenario.run(rig, scenario.full if asked.full else scenario.size)
    except (BenchmarkError, TimeoutError) as error:
        return Result(name, problems=[f"{type(error).__name__}: {error}"])


async def _store_facts(store: str) -> Mapping[str, str]:
    with _new_folder("facts") as folder:
        async with STORES[store](folder) as opened:
            return await opened.facts()


@contextmanager
def _new_folder(name: str) -> Iterator[Path]:
    # Beside the results, not in the system's temporary folder: that may be memory, where syncing costs nothing.
    with TemporaryDirectory(prefix=f"{name}-", dir=RESULTS) as folder:
        Path(folder).chmod(0o711)  # PostgreSQL refuses to be root, and another has to get to its files
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
