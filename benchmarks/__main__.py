"""`python -m benchmarks [SCENARIO ...] [options]`. See README.md."""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import records
from benchmarks.chart import chart
from benchmarks.comparison import SYNCS, ratios, syncs_of
from benchmarks.environment import environment, revision, servers
from benchmarks.harness import ROOT, Rig, TooLateError
from benchmarks.peers import scenarios as peers
from benchmarks.plan import COMPARISON, Group, plan, seconds
from benchmarks.processes import BenchmarkError
from benchmarks.records import Benchmark, Record, Result, Run
from benchmarks.report import median_lines, page, ratio_lines, settings_of, shown
from benchmarks.scenarios import SCENARIOS
from benchmarks.stores import STORES
from timer_service.core.values.errors import StartError
from timer_service.dev_server import BrokerKind

_FOLDER = Path(__file__).parent
_RESULTS = _FOLDER / "results"
_COMPARISON = _RESULTS / "comparison.json"
_PUBLISHED = _FOLDER / "figures.json"
_CHART = ROOT / "docs" / "figures.svg"
_PAGE = _FOLDER / "figures.md"
_ROUNDS = 3
_MORE_PATIENCE = (1, 3, 9)


def main() -> int:
    """Run the scenarios. Return 1 if a scenario has problems, such as missing, duplicate or early events."""
    arguments = _arguments()
    if arguments.publish:
        return _publish()
    _RESULTS.mkdir(exist_ok=True)
    runs = _planned(arguments)
    try:
        benchmark, file = _start(arguments, runs)
    except BenchmarkError as error:
        sys.exit(str(error))
    print(f"{len(runs)} runs, about {seconds(runs, SCENARIOS) / 60:.0f} minutes with the default sizes\n", flush=True)
    done = len(benchmark.records)
    for number, run in enumerate(runs, 1):
        result = asyncio.run(_measure(run))
        _show(f"{number}/{len(runs)} {run.scenario}, {run.broker}, {run.store}, sync {run.sync}", result)
        benchmark = benchmark.with_record(Record(run, result, _now(), revision()))
        records.write(file, benchmark)
    _report(benchmark)
    print(f"\nwritten to {file}")
    return int(any(each.result.problems for each in benchmark.records[done:]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmark the service.")
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help=f"one or more of: {', '.join(SCENARIOS)}. Without any: the comparison with other projects",
    )
    parser.add_argument("--all", action="store_true", help="run every scenario once, without the peers")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"how often; {_ROUNDS} for the comparison, otherwise 1")
    parser.add_argument("--full", action="store_true", help="use the full sizes, which takes much longer")
    parser.add_argument(
        "--sync",
        choices=(*SYNCS, "both"),
        help="always: the broker syncs to disk before each acknowledgement, like the embedded server. "
        "default: it syncs when it does by default, NATS every two minutes, Redis every second. "
        "Without this option: always, and both for the comparison",
    )
    parser.add_argument(
        "--broker",
        choices=[each.value for each in BrokerKind],
        help="the broker; without this option: nats if possible. Without scenarios: the comparison over this broker",
    )
    parser.add_argument("--store", choices=STORES, help="the database; without this option: sqlite if possible")
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="how many instances share the database")
    parser.add_argument("--add", type=Path, metavar="FILE", help="add the runs to this file, which need not exist")
    parser.add_argument(
        "--publish", action="store_true", help="write the files of the documentation from the comparison"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - SCENARIOS.keys():
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    if arguments.instances < 1:
        parser.error("--instances must be at least 1")
    if arguments.instances > 1 and arguments.store != "postgres":
        parser.error("SQLite supports one instance; for more, add --store postgres")
    for name in arguments.scenarios:
        if arguments.store not in (None, *(stores := SCENARIOS[name].stores)):
            parser.error(f"{name} does not run on {arguments.store}; use --store {' or '.join(stores)}")
        if arguments.broker not in (None, *(brokers := SCENARIOS[name].brokers)):
            parser.error(
                f"{name} does not run over {arguments.broker}, but {' or '.join(brokers) or 'without a broker'}"
            )
    own = (arguments.store, arguments.sync, arguments.full)
    if not arguments.scenarios and not arguments.all and any(own):
        parser.error("the comparison has its own databases, sizes and settings; name scenarios, or add --all")
    return arguments


def _planned(arguments: argparse.Namespace) -> list[Run]:
    syncs = SYNCS if arguments.sync == "both" else (arguments.sync or "always",)
    names = arguments.scenarios
    if arguments.all:
        store = arguments.store or "sqlite"
        names = [
            name
            for name, each in SCENARIOS.items()
            if store in each.stores and arguments.broker in (None, *each.brokers) and name not in peers.PEERS
        ]
    # Scenarios of one database and broker take turns.
    chosen: dict[tuple[str, str], list[str]] = {}
    for name in names:
        scenario = SCENARIOS[name]
        broker = arguments.broker or next(iter(scenario.brokers), BrokerKind.NATS)
        chosen.setdefault((arguments.store or scenario.stores[0], broker), []).append(name)
    groups: Sequence[Group] = [
        Group(some, store, syncs_of(broker, syncs), (arguments.instances,), full=arguments.full, broker=broker)
        for (store, broker), some in chosen.items()
    ]
    if not names:
        brokers = [arguments.broker] if arguments.broker else servers()
        groups = [_without_missing_peers(each) for each in COMPARISON if each.broker in brokers]
    rounds = arguments.rounds or (1 if names else _ROUNDS)
    return plan(groups, SCENARIOS, rounds)


def _without_missing_peers(group: Group) -> Group:
    there = [name for name in group.scenarios if name not in peers.PEERS or peers.installed(name)]
    return group._replace(scenarios=there)


def _start(arguments: argparse.Namespace, runs: Sequence[Run]) -> tuple[Benchmark, Path]:
    """Return what was measured before, and the file for all of it. Print the setting."""
    brokers = servers()
    used = {run.broker for run in runs}
    facts = {name.value: fact for name, fact in brokers.items() if name in used}
    setting = environment({**facts, **asyncio.run(_store_facts({run.store for run in runs}))})
    for name, fact in setting.items():
        print(f"{name:<14} {fact}")
    if missing := [each.value for each in BrokerKind if each not in brokers]:
        print(f"Not installed, so the comparison leaves them out: {', '.join(missing)}")
    if missing := [name for name in peers.PEERS if not peers.installed(name)]:
        print(f"Not installed, so the comparison leaves them out: {', '.join(missing)}; to install them: make peers")
    if arguments.add:
        before = records.read(arguments.add) if arguments.add.exists() else Benchmark(setting)
        if others := [name for name, fact in setting.items() if before.setting.get(name, fact) != fact]:
            raise BenchmarkError(f"{arguments.add} was measured with another {', '.join(others)}")
        return Benchmark({**before.setting, **setting}, before.records), arguments.add
    named = bool(arguments.scenarios or arguments.all or arguments.broker)
    return Benchmark(setting), _RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json" if named else _COMPARISON


async def _measure(run: Run) -> Result:
    """Run a scenario. If its timers were due before all of them were stored, run it again with more time."""
    for patience in _MORE_PATIENCE:
        try:
            return await _measure_once(run, patience)
        except TooLateError:
            print(f"{run.scenario}: the timers were due too early; once more, with more time", flush=True)
        except (BenchmarkError, StartError, TimeoutError) as error:
            return Result(problems=[f"{type(error).__name__}: {error}"])
    return Result(problems=["this machine did not store the timers before they were due"])


async def _measure_once(run: Run, patience: float) -> Result:
    with _new_folder(run.scenario) as folder:
        async with STORES[run.store](folder) as store:
            sync = "default" if run.sync == "default" else "always"
            rig = Rig(folder, sync, store, run.instances, patience, BrokerKind(run.broker))
            return await SCENARIOS[run.scenario].run(rig, run.size)


async def _store_facts(stores: set[str]) -> Mapping[str, str]:
    facts: dict[str, str] = {}
    for store in sorted(stores):
        with _new_folder("facts") as folder:
            async with STORES[store](folder) as opened:
                facts |= await opened.facts()
    return facts


@contextmanager
def _new_folder(name: str) -> Iterator[Path]:
    # In the folder of the results: the temporary folder of the system may be in memory, where syncing is free.
    with TemporaryDirectory(prefix=f"{name}-", dir=_RESULTS) as folder:
        Path(folder).chmod(0o711)  # PostgreSQL does not run as root, and its user must reach its files
        yield Path(folder)


def _show(title: str, result: Result) -> None:
    """Print the figures and problems of one run."""
    print(title)
    for name, value in result.figures.items():
        print(f"    {name:<64} {shown(value):>12}")
    for problem in result.problems:
        print(f"    FAILED: {problem}")
    print(flush=True)


def _report(benchmark: Benchmark) -> None:
    """Print the ratios, then the setting, then all medians."""
    print(*ratio_lines(ratios(benchmark)), "", sep="\n")
    for name, fact in settings_of(benchmark).items():
        print(f"{name:<14} {fact}")
    print("", *median_lines(benchmark), sep="\n")
    for problem in benchmark.problems:
        print(f"FAILED: {problem}")


def _publish() -> int:
    """Write the files in the repository from the comparison, and print its report."""
    benchmark = records.read(_COMPARISON)
    _report(benchmark)
    if benchmark.problems:
        return 1
    records.write(_PUBLISHED, benchmark)
    _CHART.write_text(chart(benchmark), "utf-8")
    _PAGE.write_text(page(benchmark), "utf-8")
    print(f"\nwritten to {_PUBLISHED}, {_CHART} and {_PAGE}")
    return 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
