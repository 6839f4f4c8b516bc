"""Secrets of settings are never printed, also if a server refuses them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncpg
import pytest

from tests.harness.cli import Cli
from tests.harness.postgres import PostgresServer
from tests.harness.processes import NatsServer

SECRET = "hunter2-4711"
SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
BROKER_COMMANDS: Mapping[str, Sequence[Sequence[str]]] = {
    "timers": [["list", "acme"], ["cancel", "acme", "x"], ["watch", "acme"]],
    "events": [["list", "acme"]],
    "doctor": [[], ["--json"]],
    "serve": [[]],
}
DATABASE_COMMANDS: Mapping[str, Sequence[Sequence[str]]] = {
    "migrate": [["up"], ["status"], ["check"]],
    "backup": [["backup.db"]],
    "restore": [["backup.db"]],
    "doctor": [[], ["--json"]],
    "serve": [[]],
}
REFUSES = f'authorization {{ user: "timer", password: "another-{len(SECRET)}" }}'


async def check_silent(cli: Cli, commands: Mapping[str, Sequence[Sequence[str]]], secret: str) -> None:
    """Check that each command fails, and prints no secret at log level debug."""
    for name, argument_lists in commands.items():
        for arguments in argument_lists:
            done = await cli.run(name, *arguments, TIMER_LOG_LEVEL="debug")
            printed = done.stdout + done.stderr
            assert (done.returncode, bool(printed)) == (1, True), (name, arguments)
            assert secret not in printed, (name, arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "login",
    [
        {"TIMER_BROKER_USER": "timer", "TIMER_BROKER_PASSWORD": SECRET},
        {"TIMER_NATS_TOKEN": SECRET},
        {"TIMER_NATS_NKEY_SEED": SEED},
        {"TIMER_BROKER_URL": f"nats://timer:{SECRET}@HOST"},
        {"TIMER_BROKER_URL": f"http://timer:{SECRET}@HOST"},
    ],
    ids=["password", "token", "seed", "password in the url", "no nats url"],
)
async def test_refused_by_the_broker(tmp_path: Path, login: dict[str, str]) -> None:
    """No command prints a password, a token or a seed that the broker refuses."""
    async with NatsServer(tmp_path / "nats", REFUSES) as server:
        cli = Cli(tmp_path, server.url)
        host = server.url.removeprefix("nats://")
        cli.settings |= {name: value.replace("HOST", host) for name, value in login.items()}
        every = "TIMER_BROKER_PASSWORD" in login
        commands: Mapping[str, Sequence[Sequence[str]]] = (
            BROKER_COMMANDS if every else {"doctor": [[]], "events": [["list", "acme"]], "serve": [[]]}
        )
        await check_silent(cli, commands, SEED if SEED in login.values() else SECRET)


@pytest.mark.slow
async def test_refused_by_postgres(tmp_path: Path, broker: NatsServer, postgres_server: PostgresServer) -> None:
    """No command prints the password of a database that refuses it, that is away, or whose URL is wrong."""
    await require_password(postgres_server.url)
    cli = Cli(tmp_path, broker.url)
    host = postgres_server.url.partition("@")[2]
    for url in (
        f"postgresql://locked:{SECRET}@{host}",
        f"postgresql://locked:{SECRET}@127.0.0.1:1/timers",
        f"postgresql://locked:{SECRET}@{host}?sslmode={SECRET}",
        f"mysql://locked:{SECRET}@{host}",
    ):
        cli.settings["TIMER_DATABASE_URL"] = url
        commands: Mapping[str, Sequence[Sequence[str]]] = (
            DATABASE_COMMANDS if ":1/" not in url else {"doctor": [[]]}
        )  # the others wait for 10 s
        await check_silent(cli, commands, SECRET)


async def require_password(url: str) -> None:
    """Create the role `locked`, whose login needs another password than the tests use."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE ROLE locked LOGIN PASSWORD 'another'")
        file = await connection.fetchval("SHOW hba_file")
        rules = "('host all locked all scram-sha-256'), ('host all all all trust')"
        await connection.execute(f"COPY (VALUES {rules}) TO '{file}'")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()
