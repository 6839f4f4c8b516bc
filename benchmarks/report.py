"""The report of a benchmark: figures, problems, and the environment."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness import SYNC_INTERVALS
from benchmarks.processes import nats_server

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Result:
    """The result of one scenario. The name of each figure ends with its unit."""

    scenario: str
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """The benchmark fails if there is a problem."""
    samples: Sequence[Mapping[str, float]] = ()
    """Measurements over time, written to the file only."""


def environment(sync: str, store: Mapping[str, str], instances: int) -> dict[str, str]:
    """Return the machine, the versions and the durability settings. `store` holds the facts of the database."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "memory": f"{memory:.1f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "instances": str(instances),
        **store,
        "nats-server": subprocess.check_output([nats_server(), "--version"], text=True).split(": v")[-1].strip(),
        "jetstream": f"file storage, 1 replica, sync_interval={SYNC_INTERVALS[sync]}",
        "nats-py": version("nats-py"),
        **({"dbos": f"{dbos}, SQLite with its default, synchronous=FULL"} if (dbos := dbos_version()) else {}),
    }


def dbos_version() -> str | None:
    """Return the version of DBOS, a peer; None if it is not installed."""
    try:
        return version("dbos")
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """Return the name of the processor. On Linux it is read from a file."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def show_environment(facts: Mapping[str, str]) -> None:
    """Print the environment."""
    for name, fact in facts.items():
        print(f"{name:<12} {fact}")
    print(flush=True)


def show(result: Result) -> None:
    """Print the figures and problems of one scenario."""
    for name, value in result.figures.items():
        shown = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.2f}"
        print(f"{result.scenario:<8} {name:<52} {shown:>12}")
    for problem in result.problems:
        print(f"{result.scenario:<8} FAILED: {problem}")
    print(flush=True)


def write(facts: Mapping[str, str], results: Sequence[Result]) -> Path:
    """Write all results to a JSON file and return its path."""
    at = datetime.now(UTC)
    file = RESULTS / f"{at:%Y%m%dT%H%M%SZ}.json"
    run = {"at": at.isoformat(timespec="seconds"), "setting": facts, "results": [asdict(each) for each in results]}
    file.write_text(json.dumps(run, indent=2) + "\n", "utf-8")
    return file
