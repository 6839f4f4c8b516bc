"""The service under the protocol of systemd, started as deploy/systemd starts it."""

import configparser
from contextlib import AsyncExitStack
from pathlib import Path

from tests.harness.processes import NatsServer, Service
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
