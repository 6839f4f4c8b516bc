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
from benchmarks.report import RESULTS, Result, dbos_version, environment, show, show_environment, write
from benchmarks.scenarios import SCENARIOS
from benchmarks.stores import STORES


def main() -> int:
    """Run the scenarios. Return 1 if a scenario has problems, such as missing, duplicate or early events."""
    arguments = _arguments()
    RESULTS.mkdir(exist_ok=True)
    try:
        facts = environment(arguments.sync, asyncio.run(_store_facts(arguments.store)), arguments.instances)
    except BenchmarkError as error:
        sys.exit(str(error))
    show_environment(facts)
    results = []
    for name in arguments.scenarios:
        results.append(asyncio.run(_run(name, arguments)))
        show(results[-1])
    print(f"written to {write(facts, results)}")
    return int(any(result.problems for result in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmark the service.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"one or more of: {', '.join(SCENARIOS)}")
    parser.add_argument("--full", action="store_true", help="use the full sizes, which takes minutes")
    parser.add_argument(
        "--sync",
        choices=SYNC_INTERVALS,
        default="always",
        help="always: the broker syncs to disk before each acknowledgement, like the embedded server. "
        "default: it syncs every two minutes, the default of nats-server. Without this option: always",
    )
    parser.add_argument("--store", choices=STORES, default="sqlite", help="the database")
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="how many instances share the database")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - SCENARIOS.keys():
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    if arguments.instances < 1:
        parser.error("--instances must be at least 1")
    if arguments.instances > 1 and arguments.store == "sqlite":
        parser.error("SQLite supports one instance; for more, add --store postgres")
    for name in arguments.scenarios:
        if arguments.store not in (stores := SCENARIOS[name].stores):
            parser.error(f"{name} does not run on {arguments.store}; add --store {' or '.join(stores)}")
    if not arguments.scenarios:
        arguments.scenarios = [name for name, each in SCENARIOS.items() if arguments.store in each.stores]
        if "dbos" in arguments.scenarios and dbos_version() is None:
            print("DBOS is not installed, so the scenario dbos is left out")
            arguments.scenarios.remove("dbos")
    return arguments


async def _run(name: str, arguments: argparse.Namespace) -> Result:
    scenario = SCENARIOS[name]
    try:
        with _new_folder(name) as folder:
            async with STORES[arguments.store](folder) as store:
                rig = Rig(folder, arguments.sync, store, arguments.instances)
                return await scenario.run(rig, scenario.full if arguments.full else scenario.size)
    except (BenchmarkError, TimeoutError) as error:
        return Result(name, problems=[f"{type(error).__name__}: {error}"])


async def _store_facts(store: str) -> Mapping[str, str]:
    with _new_folder("facts") as folder:
        async with STORES[store](folder) as opened:
            return await opened.facts()


@contextmanager
def _new_folder(name: str) -> Iterator[Path]:
    # In the folder of the results: the temporary folder of the system may be in memory, where syncing is free.
    with TemporaryDirectory(prefix=f"{name}-", dir=RESULTS) as folder:
        Path(folder).chmod(0o711)  # PostgreSQL does not run as root, and its user must reach its files
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
