"""The service under the protocol of systemd, started as deploy/systemd starts it."""

import asyncio
import configparser
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.systemd import Systemd

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "timer-service.service"
WATCHDOG_SECONDS = 0.3
WATCHDOG = {"WATCHDOG_USEC": str(round(WATCHDOG_SECONDS * 1_000_000))}


def unit_setting(name: str) -> str:
    """Return a setting of the section [Service] that the unit has once."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the names are not in lower case
    unit.read(UNIT, "utf-8")
    return unit["Service"][name]


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP has stopped a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


async def test_life_of_the_unit(tmp_path: Path, broker: NatsServer) -> None:
    """READY comes when /readyz is 200, WATCHDOG while the process runs, and STOPPING last, before it ends."""
    with Systemd(str(tmp_path / "notify")) as systemd:
        service = Service(tmp_path / "service", broker.url, **systemd.environ, **WATCHDOG)
        program, *arguments = unit_setting("ExecStart").split()
        assert Path(program).name == Path(service.command[0]).name
        service.command[1:] = arguments
        async with AsyncExitStack() as stack:
            stack.push_async_exit(service)
            service.launch()
            assert await systemd.next() == "READY=1"
            assert (await service.page("/readyz"))[0] == 200
            assert await systemd.next() == "WATCHDOG=1"
            assert await service.terminate() == 0
            *before, last = systemd.waiting()
    assert set(before) <= {"WATCHDOG=1"}
    assert last == "STOPPING=1"


async def test_frozen_process_misses_the_watchdog(tmp_path: Path, broker: NatsServer) -> None:
    """While the process does not run, no WATCHDOG comes, so systemd notices it."""
    with Systemd(str(tmp_path / "notify")) as systemd:
        async with Service(tmp_path / "service", broker.url, **systemd.environ, **WATCHDOG) as service:
            assert await systemd.next() == "READY=1"
            service.signal(signal.SIGSTOP)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not is_stopped(service.running.pid):
                    await asyncio.sleep(0.001)
            systemd.waiting()
            systemd.expect_silence(WATCHDOG_SECONDS)
            service.signal(signal.SIGCONT)
            assert await systemd.next() == "WATCHDOG=1"
