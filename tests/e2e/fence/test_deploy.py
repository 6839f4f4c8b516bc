"""Tests of deploy/: the configuration matches the contracts, prepare.py makes a server that works, and TLS."""

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.cli import Cli, statuses
from tests.harness.fence import CONFIG, PASSWORDS, PATIENCE_SECONDS, SERVICE_LOGIN, connect
from tests.harness.prepared import Prepared, prepare
from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import BIN
from timer_service.app.slices import QUERIES, SLICES
from timer_service.core.values.address import kebab


@pytest.mark.parametrize("tenant", ["tenant-a", "tenant-b"])
def test_tenants_import_everything_by_name(tenant: str) -> None:
    """A tenant imports exactly the commands, queries and requests of the contracts, and no wildcard."""
    commands = {kebab(each.__name__) for slice_ in SLICES for each in slice_.commands}
    queries = {each.name for each in QUERIES}
    requests = {each.name for slice_ in SLICES for each in slice_.requests}
    for kind, names in (("cmd", commands), ("qry", queries), ("wrk", requests)):
        imported = re.findall(rf'service: {{ account: TIMERS, subject: "timer\.{kind}\.v1\.{tenant}\.([^"]+)"', CONFIG)
        assert sorted(imported) == sorted(names)


def test_prepared_server_accepts_the_passwords(tmp_path: Path) -> None:
    """prepare.py writes a valid configuration without passwords. Run again, it adds tenants and changes nothing."""
    assert "Start the server: nats-server -c " in prepare(tmp_path / "server", "tenant-a").stdout
    before = (tmp_path / "server" / "tenants.conf").read_text()
    ran = prepare(tmp_path / "server", "tenant-a", "0815", "acme_2")
    assert (ran.returncode, ran.stderr, "Reload the server" in ran.stdout) == (0, "", True)
    after = (tmp_path / "server" / "tenants.conf").read_text()
    assert after.startswith(before)
    assert re.findall(r"^(\S+) {$", after, re.MULTILINE) == ["tenant-a", "0815", "acme_2"]
    secrets = [each.read_text() for each in (tmp_path / "server" / "passwords").iterdir()]
    assert len(secrets) == 5
    written = after + (tmp_path / "server" / "nats.conf").read_text() + ran.stdout
    assert not [each for each in secrets if each in written]
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "server").rglob("*") if file.is_file()} == {0}
    checked = subprocess.run(
        [BIN / "nats-server", "-t", "-c", tmp_path / "server" / "nats.conf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(("broker", "users"), [("redis", "users.acl"), ("rabbitmq", "definitions.json")])
def test_prepared_files_of_other_brokers(tmp_path: Path, broker: str, users: str) -> None:
    """prepare.py writes hashes, no passwords. Run again, it adds tenants and changes nothing else."""
    folder = tmp_path / "server"
    assert prepare(folder, "--broker", broker, "tenant-a", "tenant-c").returncode == 0
    before = (folder / users).read_text()
    ran = prepare(folder, "--broker", broker, "tenant-c", "acme_2")
    assert (ran.returncode, ran.stderr) == (0, "")
    after = (folder / users).read_text()
    names = ["operator", "timer-service", "tenant-a", "tenant-c", "acme_2"]
    if broker == "redis":
        assert after.startswith(before)
        assert re.findall(r"^user (\S+) ", after, re.MULTILINE) == ["default", *names]
    else:
        definitions = json.loads(after)
        assert [each["name"] for each in definitions["users"]] == names
        assert {each["user"] for each in definitions["topic_permissions"]} == set(names[2:])
        assert all(each in definitions["permissions"] for each in json.loads(before)["permissions"])
    assert "tenant-b" not in after
    assert "$" not in re.sub(r"\$(?=\W)", "", after), "a variable is left"
    secrets = [each.read_text() for each in (folder / "passwords").iterdir()]
    assert (len(secrets), [each for each in secrets if each in after]) == (5, [])
    assert {file.stat().st_mode & 0o077 for file in folder.rglob("*") if file.is_file()} == {0}


@pytest.mark.parametrize(
    ("broker", "name"),
    [
        *(("nats", name) for name in ("operator", "TIMERS", "Include", "two words", "a.b", "")),
        *(("redis", "default"), ("rabbitmq", "timer"), ("rabbitmq", "guest")),
    ],
)
def test_prepare_refuses_names(broker: str, name: str, tmp_path: Path) -> None:
    """A name that no tenant can have is refused before anything is written."""
    ran = prepare(tmp_path / "server", "--broker", broker, "tenant-a", name)
    assert (ran.returncode, "cannot be the name of a tenant" in ran.stderr) == (1, True)
    assert not (tmp_path / "server").exists()


async def test_service_runs_on_a_prepared_server(tmp_path: Path) -> None:
    """The service logs in with the password file, and `doctor` finds no failure and no missing permission."""
    prepared = await asyncio.to_thread(Prepared, tmp_path / "server", "tenant-a")
    password = str(prepared.password_file("timer-service"))
    login = {"TIMER_BROKER_USER": "timer-service", "TIMER_BROKER_PASSWORD_FILE": password}
    async with prepared.broker(tmp_path / "nats") as broker, Service(tmp_path / "service", broker.url, **login):
        cli = Cli(tmp_path, broker.url)
        cli.settings |= login
        found = {name: status for name, status in (await statuses(cli, 0)).items() if status not in {"ok", "note"}}
    assert found.keys() <= {"sqlite"}  # an old library


async def test_tenant_is_added_while_the_server_runs(tmp_path: Path) -> None:
    """After two reloads a new tenant can use the service, and the connections of others stay open."""
    start = CONFIG.index("tenant-b {")
    block = CONFIG[start : CONFIG.index("\n}\n", start) + 3]
    async with (
        NatsServer(tmp_path / "nats", config=CONFIG.replace(block, ""), **PASSWORDS) as broker,
        Service(tmp_path / "service", broker.url, **SERVICE_LOGIN) as service,
    ):
        a = await connect(broker, "tenant-a")
        file = tmp_path / "nats" / "nats.conf"
        file.write_text(file.read_text().rpartition("}")[0] + block + "}\n")
        for count in (1, 2):
            broker.signal(signal.SIGHUP)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while broker.log.read_text().count("Reloaded server configuration") < count:
                    await asyncio.sleep(0.02)
        b = await connect(broker, "tenant-b")
        for peer, tenant in ((a, "tenant-a"), (b, "tenant-b")):
            assert (await peer.schedule(tenant, "call-1", "2100-01-01T00:00:00Z"))["outcome"] == "scheduled"
            assert (await peer.request(f"timer.qry.v1.{tenant}.count-timers"))["counts"]["Scheduled"] == 1
            await peer.connection.close()
        await service.until_page("/readyz", 200)
        assert "unavailable" not in service.log.read_text()
