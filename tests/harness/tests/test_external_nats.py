"""An external nats-server."""

from pathlib import Path

import nats
import pytest

from tests.harness.processes import NatsServer
from tests.harness.provision import Provision, restartable_nats


async def test_external_server_has_no_streams_of_earlier_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of the service are deleted before each test. Other streams stay."""
    async with NatsServer(tmp_path) as server:
        monkeypatch.setenv("TIMER_TEST_NATS_URL", server.url)
        async with await nats.connect(server.url) as connection:
            jetstream = connection.jetstream()
            for name in ("TIMER_CMD", "TIMER_EVT", "OTHER"):
                await jetstream.add_stream(name=name, subjects=[name])
            async with restartable_nats(Provision.EXTERNAL, tmp_path) as external:
                assert external.url == server.url
                assert [stream.config.name for stream in await jetstream.streams_info()] == ["OTHER"]


async def test_stopping_an_external_server_skips_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that stops an external server is skipped."""
    async with NatsServer(tmp_path) as server:
        monkeypatch.setenv("TIMER_TEST_NATS_URL", server.url)
        async with restartable_nats(Provision.EXTERNAL, tmp_path) as external:
            with pytest.raises(pytest.skip.Exception, match="do not stop an external server"):
                await external.terminate()
