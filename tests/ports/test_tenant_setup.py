"""A stream for each tenant, as an operator sets it up: with the login and the subjects of the settings."""

import json
from pathlib import Path
from typing import Any

import nats

from tests.harness.nats_peer import scripted_peer
from tests.harness.processes import NatsServer
from timer_service.cli.tenant_streams import as_operator, separate_tenants, stream_events
from timer_service.config import Config

SERVER = """
port: 4222
jetstream { store_dir: "/data" }
authorization { user: operator, password: s3cret }
"""


async def test_settings(tmp_path: Path) -> None:
    """The streams have the prefix of the settings, and are made with their login. Only new tenants are named."""
    async with NatsServer(tmp_path / "nats", config=SERVER) as server:
        config = Config.model_validate(
            {
                "broker_url": server.url,
                "subject_prefix": "acme.x",
                "broker_user": "operator",
                "broker_password": "s3cret",
            }
        )
        found = [
            await as_operator(config, separate_tenants, ["a", "b"]),
            await as_operator(config, separate_tenants, ["b", "c"]),
        ]
        async with await nats.connect(server.url, user="operator", password="s3cret") as connection:
            streams = await connection.jetstream().streams_info()
    subjects = {subject for each in streams for subject in each.config.subjects or ()}
    assert found == [["a", "b"], ["c"]]
    assert subjects >= {f"acme.x.cmd.v1.{tenant}.*" for tenant in ("a", "b", "c")}


async def test_replicas() -> None:
    """The streams of a tenant have as many replicas as the streams of all tenants."""
    created: dict[str, int] = {}

    def answer(subject: str, body: bytes) -> dict[str, Any]:
        if ".STREAM.CREATE." in subject:
            created[subject.rpartition(".")[2]] = json.loads(body)["num_replicas"]
        found = {"config": {"name": "TIMER", "num_replicas": 3}, "created": "2020-01-01T00:00:00Z", "state": {}}
        missing = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
        return missing if subject.endswith((".INFO.TIMER_CMD_a", ".INFO.TIMER_EVT_a")) else found

    async with scripted_peer() as peer:
        peer.answer = answer
        for set_up in (separate_tenants, stream_events):
            await as_operator(Config(broker_url=peer.url), set_up, ["a"])
    assert created == {"TIMER_CMD_a": 3, "TIMER_EVT_a": 3}
