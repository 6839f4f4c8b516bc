"""The machine, the versions and the durability settings of a benchmark."""

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import ROOT
from benchmarks.peers.scenarios import peer_versions
from timer_service.adapters.embedded import PROGRAMS
from timer_service.core.values.errors import StartError
from timer_service.dev_server import BrokerKind

_SERVERS = {
    BrokerKind.NATS: ("", ["--version"], -1, "file storage; sync is its sync_interval, by default 2m"),
    BrokerKind.REDIS: ("", ["--version"], 2, "append-only file; sync is its appendfsync, by default everysec"),
    BrokerKind.RABBITMQ: ("rabbitmqctl", ["version"], -1, "streams, which it does not sync"),
}
"""How to ask a broker for its version: a program beside it, arguments, a word of the answer. Then its settings."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the machine and the versions. `more` holds the facts of the brokers and the databases."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "memory": f"{memory:.1f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "nats-py": version("nats-py"),
        **more,
        **peer_versions(),
    }


def servers() -> dict[BrokerKind, str]:
    """Return the version of each broker that is installed, with its settings."""
    found = {}
    for kind, (program, arguments, number, settings) in _SERVERS.items():
        with suppress(StartError):
            binary = PROGRAMS[kind].find()
            output = subprocess.check_output([binary.with_name(program or binary.name), *arguments], text=True)
            found[kind] = f"{output.split()[number]}, {settings}"
    return found


def revision() -> str:
    """Return the revision of the checkout, with a `+` if measured files were changed; empty without git."""
    changed = _git("status", "--porcelain", "--", "timer_service", "benchmarks/*.py")
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
