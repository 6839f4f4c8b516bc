"""`timer-service dev`: the first command of a new user."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.cases import case
from tests.harness.installed import require
from tests.harness.processes import Dev, unused_port
from tests.harness.spawn import TIMER_SERVICE, spawn
from tests.harness.waiting import until
from timer_service.adapters.embedded import NATS, RABBITMQ, REDIS

BROKERS = {
    "nats": (NATS, "nats://127.0.0.1:"),
    "redis": (REDIS, "redis://127.0.0.1:"),
    "rabbitmq": (RABBITMQ, "amqp://127.0.0.1:"),
}


@pytest.mark.slow
@pytest.mark.parametrize("broker", BROKERS)
async def test_demo(tmp_path: Path, broker: str) -> None:
    """It shows a timer firing over each broker, and does not use the database that the environment names.

    The next start without --broker has the same broker and the timers.
    """
    program, url = BROKERS[broker]
    require(program)
    settings = {"TIMER_DATABASE_URL": "postgresql://user:password@127.0.0.1:1/production"}
    async with Dev(tmp_path, "--broker", broker, "--broker-port", str(unused_port()), **settings) as dev:
        dev.signal(signal.SIGINT)
        assert await dev.wait() == 0
        text = dev.log.read_text()
        assert "scheduled: a timer of tenant demo" in text
        assert "fired:     " in text
        assert len(text.splitlines()) < 20, "all of it is seen at once"
        assert f" timers watch --server {url}" in text.replace("'", ""), "other commands do not look in this folder"
        assert (tmp_path / "dev" / "timers.db").exists()
        del dev.command[-4:]
        await dev.start()
        (tmp_path / ".timer-service").symlink_to(tmp_path / "dev")
        done = await run(tmp_path, "timers", "list", "demo", "--json")
        assert [each["serviceCallId"][:6] for each in json.loads(done.stdout)] == ["hello-"] * 2
        assert broker_of(tmp_path).startswith(url)


@pytest.mark.slow
async def test_other_commands_find_it(tmp_path: Path) -> None:
    """In the folder of a running `dev`, the other commands use its broker and its database. A second `dev` fails.

    A backup and a restore use its database also if it is stopped, unless the folder has another one.
    """
    async with Dev(tmp_path) as dev:
        (tmp_path / ".timer-service").symlink_to(tmp_path / "dev")
        done = await run(tmp_path, "timers", "list", "demo", "--json")
        assert json.loads(done.stdout)[0]["state"] == "Reached"
        done = await run(tmp_path, "doctor")
        assert (done.returncode, "(the `dev` of this folder), process " in done.stdout) == (0, True)
        assert "ok    flow of commands: ok" in done.stdout
        done = await run(tmp_path, "doctor", "--server", "nats://127.0.0.1:1")
        assert "fail  broker: cannot connect to nats://127.0.0.1:1: " in done.stdout
        done = await run(tmp_path, "migrate", "status")
        assert (done.returncode, "pending" in done.stdout) == (0, False)
        done = await run(tmp_path, "dev", "--data-dir", str(tmp_path / "dev"))
        assert (done.returncode, f"(process {dev.running.pid}, broker nats://127.0.0.1:" in done.stderr) == (1, True)
        dev.signal(signal.SIGINT)
        await dev.wait()
        done = await run(tmp_path, "backup", "copy.db")
        assert (done.returncode, str(tmp_path / "dev" / "timers.db") in done.stdout) == (0, True)
        done = await run(tmp_path, "restore", "copy.db")
        assert (done.returncode, f"restored {tmp_path / 'dev' / 'timers.db'} from copy.db" in done.stdout) == (0, True)
        (tmp_path / "event_service.db").touch()
        done = await run(tmp_path, "restore", "copy.db")
        assert (done.returncode, "this folder has two databases" in done.stderr) == (1, True)


@pytest.mark.slow
async def test_its_broker_is_killed(tmp_path: Path) -> None:
    """It ends with code 1 and says what to do. The next start has the timers."""
    (tmp_path / ".timer-service").symlink_to(tmp_path / "dev")
    async with new_dev(tmp_path) as dev:
        await run(tmp_path, "timers", "schedule", "acme", "call-1", "--in", "1h")
        newest_line = (tmp_path / "dev" / "nats" / "nats-server.log").read_text().splitlines()[-1]
        os.kill(int(newest_line.removeprefix("[").partition("]")[0]), signal.SIGKILL)
        assert await dev.wait() == 1
        error = "timer-service: nats-server has ended with code -9. What it has acknowledged is stored: start "
        assert error in dev.log.read_text()
        await dev.start()
        assert await calls(tmp_path) == ["call-1"]


EXECUTOR = Path(__file__).parents[2] / "docs" / "examples" / "executor.py"
SCRIPT = """
import asyncio
from timer_service.client import TimerClient
async def main():
    async with TimerClient.connect() as client:
        print([timer.timer_id async for timer in client.timers.list("acme")])
asyncio.run(main())
"""
WORKFLOW = """
from timer_service.worker import workflow
@workflow("order")
async def order(ctx, order): ...
"""
PROGRAMS = {
    "timers list": [TIMER_SERVICE, "timers", "list", "acme"],
    "timers schedule": [TIMER_SERVICE, "timers", "schedule", "acme", "stray", "--in", "1h"],
    "timers watch": [TIMER_SERVICE, "timers", "watch"],
    "worker": [TIMER_SERVICE, "worker", "acme", "orders:order"],
    "doctor": [TIMER_SERVICE, "doctor"],
    "tenants": [TIMER_SERVICE, "tenants", "events", "acme"],
    "listen": [TIMER_SERVICE, "listen", "acme", "--exec", "cat"],
    "executor.py": [sys.executable, str(EXECUTOR), "acme"],
    "orders.py": [sys.executable, str(EXECUTOR.with_name("orders.py"))],
    "shop.py": [sys.executable, str(EXECUTOR.with_name("shop.py"))],
    "client": [sys.executable, "-c", SCRIPT],
}


@pytest.mark.slow
async def test_two_services_on_a_machine(tmp_path: Path) -> None:
    """No program reaches the `dev` of another folder, whether its own one was stopped, killed, or lost its port."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        (folder / ".timer-service").symlink_to(folder / "dev")
        (folder / "orders.py").write_text(WORKFLOW)
    async with new_dev(mine) as dev, new_dev(other) as neighbour:
        for each in (dev, neighbour):
            del each.command[-2:]  # the next start is to find the port
        for folder in (mine, other):
            done = await run(folder, "timers", "schedule", "acme", folder.name, "--in", "1h")
            assert (done.returncode, done.stdout.split(" (")[0]) == (0, f"scheduled: acme/{folder.name}")
            assert await calls(folder) == [folder.name]
        lost = broker_of(mine)

        dev.signal(signal.SIGTERM)
        assert await dev.wait() == 0
        with case("stopped"):
            await assert_refused(mine)
        await dev.start()
        assert (broker_of(mine), await calls(mine)) == (lost, ["mine"])
        await dev.kill()
        await until(lambda: not takes_connections(int(lost.rpartition(":")[2])))  # its nats-server ends after it
        with case("killed"):
            await assert_refused(mine)
        await neighbour.terminate()
        neighbour.command += ["--broker-port", lost.rpartition(":")[2]]
        await neighbour.start()
        assert broker_of(other) == lost
        content = json.loads((mine / "dev" / "dev.json").read_text())
        (mine / "dev" / "dev.json").write_text(json.dumps({**content, "pid": neighbour.running.pid}))
        with case("another dev has the port, and the pid"):
            await assert_refused(mine)
            assert await calls(other) == ["other"]

        await dev.start()
        assert f"Port {lost.rpartition(':')[2]} is in use; NATS uses " in dev.log.read_text()
        assert broker_of(mine) != lost
        assert (await calls(mine), await calls(other)) == (["mine"], ["other"])


def new_dev(folder: Path) -> Dev:
    """Return a `dev` at a port that no other test uses, without the demo."""
    dev = Dev(folder)
    dev.command.remove("--demo")
    dev.command += ["--broker-port", str(unused_port())]
    return dev


def broker_of(folder: Path) -> str:
    return str(json.loads((folder / "dev" / "dev.json").read_text())["brokerUrl"])


async def calls(folder: Path) -> list[str]:
    """Return the timers that the command line finds in a folder. The client must find the same ones."""
    listed = [
        each["serviceCallId"] for each in json.loads((await run(folder, "timers", "list", "acme", "--json")).stdout)
    ]
    assert (await run_program(folder, [sys.executable, "-c", SCRIPT])).stdout == f"{listed}\n"
    return listed


async def assert_refused(folder: Path) -> None:
    """No program finds a broker. A command says that its usage is wrong."""
    for name, command in PROGRAMS.items():
        with case(name):
            done = await run_program(folder, command)
            assert (done.returncode, done.stdout) == (2 if command[0] == TIMER_SERVICE else 1, "")
            assert "is not running" in " ".join(done.stderr.replace("│", " ").split())


async def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await run_program(folder, [TIMER_SERVICE, *arguments])


async def run_program(folder: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without settings."""
    output, errors = folder / "stdout", folder / "stderr"
    output.unlink(missing_ok=True)
    errors.unlink(missing_ok=True)
    process = spawn(command, output, errors, environment={"TIMER_BROKER_URL": ""}, cwd=folder)
    code = await asyncio.to_thread(process.wait, 30)
    return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


def takes_connections(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
