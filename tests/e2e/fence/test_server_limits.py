"""What nats-server does not limit, as docs/security.md says, and how the log is limited."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

from tests.harness.fence import CONFIG, PASSWORDS, PATIENCE_SECONDS, Operator, connect
from tests.harness.processes import NatsServer, unused_port
from tests.harness.raw_nats import RawMessage, RawNats

NEXT = "$JS.API.CONSUMER.MSG.NEXT.TIMER_EVT_tenant-a.tenant-a"
COUNT = "timer.qry.v1.tenant-a.count-timers"
PULLS = 100
MESSAGES = 600
LOG_LIMIT = 1024 * 1024
MIB = 1024 * 1024
LOG_FILES = 2


async def kept_replies(port: int, account: str = "TIMERS") -> int:
    """Return how many reply subjects the server keeps for an account."""
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/accountz?acc={account}") as page:
        return len(json.load(page)["account_detail"].get("responses", {}))


async def test_answered_pulls_stay_in_the_server(tmp_path: Path) -> None:
    """The server keeps the reply subject of a pull after its answer, as long as a tenant subscribes to it."""
    port = unused_port()
    config = f"{CONFIG}\nhttp: 127.0.0.1:{port}\n"
    async with NatsServer(tmp_path / "nats", config=config, **PASSWORDS) as broker:
        operator = await connect(broker, "operator", Operator)
        await operator.connection.jetstream().add_stream(name="TIMER_EVT", subjects=["timer.evt.v1.*.*"])
        await operator.create_consumer("tenant-a")
        a = await connect(broker, "tenant-a")
        (answers,) = await a.subscribe("_INBOX.tenant-a.*")
        before = await kept_replies(port)
        for number in range(PULLS):
            await a.connection.publish(NEXT, b'{"batch": 1, "no_wait": true}', f"_INBOX.tenant-a.{number}")
        for _ in range(PULLS):
            assert ((await answers.next_msg(PATIENCE_SECONDS)).headers or {})["Status"] == "404"
        assert await kept_replies(port) == before + PULLS
        await answers.unsubscribe()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await kept_replies(port) > before:
                await asyncio.sleep(0.02)
        await a.connection.close()
        await operator.connection.close()


async def test_server_keeps_little_for_a_tenant_that_does_not_read(tmp_path: Path) -> None:
    """The server keeps at most 32 MB for a connection that does not read, and drops the rest."""
    port = unused_port()
    login = {"user": "tenant-a", "pass": PASSWORDS["TENANT_A_PASSWORD"]}
    async with (
        NatsServer(tmp_path / "nats", config=f"{CONFIG}\nhttp: 127.0.0.1:{port}\n", **PASSWORDS) as broker,
        RawNats.connect(broker.port, **login) as unread,
    ):
        await unread.listen(b"timer.evt.v1.tenant-a.*")
        service = await connect(broker, "timer-service")
        for _ in range(80):
            await service.publish("timer.evt.v1.tenant-a.due-time-reached", b"x" * (MIB - 1000))
        with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/connz") as page:
            (kept,) = [each["pending_bytes"] for each in json.load(page)["connections"] if each.get("name") == "raw"]
        assert 16 * MIB < kept <= 32 * MIB
        await service.connection.close()


async def test_log_of_the_server_has_a_limit(tmp_path: Path) -> None:
    """With the line of nats.conf, reply subjects that the server reserves and logs do not fill the disk."""
    (line,) = re.findall(r"^# (log_file: .*)$", CONFIG, re.MULTILINE)
    assert line == 'log_file: "nats.log", logfile_size_limit: 100MB, logfile_max_num: 5'
    limited = line.replace("nats.log", str(tmp_path / "nats.log")).replace("100MB", f"{LOG_LIMIT}")
    config = CONFIG.replace(f"# {line}", limited.replace("max_num: 5", f"max_num: {LOG_FILES}"))
    attack = RawMessage(COUNT.encode(), reply=b"_R_." + b"x" * 3_900)
    async with NatsServer(tmp_path / "nats", config=config, **PASSWORDS) as broker:
        async with RawNats.connect(broker.port, user="tenant-a", **{"pass": PASSWORDS["TENANT_A_PASSWORD"]}) as raw:
            await raw.publish([attack] * MESSAGES)
        sizes = await asyncio.to_thread(lambda: [each.stat().st_size for each in tmp_path.glob("nats.log*")])
    assert len(sizes) == LOG_FILES
    assert LOG_LIMIT < sum(sizes) < LOG_FILES * (LOG_LIMIT + len(attack.encode()) + 1_000)
