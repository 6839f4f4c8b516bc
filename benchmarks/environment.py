"""The machine, the versions and the durability settings of a benchmark."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import ROOT
from benchmarks.peers.scenarios import peer_versions
from benchmarks.processes import nats_server


def environment(stores: Mapping[str, str]) -> dict[str, str]:
    """Return the machine and the versions. `stores` holds the facts of the databases."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "memory": f"{memory:.1f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "nats-server": subprocess.check_output([nats_server(), "--version"], text=True).split(": v")[-1].strip(),
        "jetstream": "file storage, 1 replica; sync_interval is in each line, and its default is 2m",
        "nats-py": version("nats-py"),
        **stores,
        **peer_versions(),
    }


def revision() -> str:
    """Return the revision of the checkout, with a `+` if measured files were changed; empty without git."""
    changed = _git("status", "--porcelain", "--", "timer_service", "migrations", "benchmarks/*.py")
    return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _cpu() -> str:
    """Return the name of the processor. On Linux it is read from a file."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
