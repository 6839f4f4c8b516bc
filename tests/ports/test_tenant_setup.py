"""A stream for each tenant, as an operator sets it up: with the login and the subjects of the settings."""

from pathlib import Path

import nats

from tests.harness.processes import NatsServer
from timer_service.cli.tenant_streams import as_operator, separate_tenants
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
            {"broker_url": server.url, "subject_prefix": "acme.x", "nats_user": "operator", "nats_password": "s3cret"}
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
