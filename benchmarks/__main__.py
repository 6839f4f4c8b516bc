"""`python -m benchmarks [SCENARIO ...] [--full] [--sync {default,always}]`."""

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import SYNC_INTERVALS, BenchmarkError, Rig
from benchmarks.report import RESULTS, Result, setting, show, show_setting, write
from benchmarks.scenarios import SCENARIOS


def main() -> int:
    """Run what was asked for; return 1 if anything came out missing, doubled or early."""
    asked = _arguments()
    RESULTS.mkdir(exist_ok=True)
    facts = setting(asked.sync)
    show_setting(facts)
    results = []
    for name in asked.scenarios or SCENARIOS:
        results.append(_run(name, asked.sync, full=asked.full))
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
    asked = parser.parse_args()
    if unknown := set(asked.scenarios) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return asked


def _run(name: str, sync: str, *, full: bool) -> Result:
    scenario = SCENARIOS[name]
    size = scenario.full if full else scenario.size
    # Beside the results, not in the system's temporary folder: that may be memory, where syncing costs nothing.
    with TemporaryDirectory(prefix=f"{name}-", dir=RESULTS) as folder:
        try:
            return asyncio.run(scenario.run(Rig(Path(folder), sync), size))
        except (BenchmarkError, TimeoutError) as error:
            return Result(name, problems=[f"{type(error).__name__}: {error}"])


if __name__ == "__main__":
    sys.exit(main())
