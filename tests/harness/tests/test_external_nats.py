"""The nats-server that somebody lends to the tests."""

from pathlib import Path

import nats
import pytest

from tests.harness.processes import NatsServer
from tests.harness.provision import Provision, restartable_nats


async def test_each_test_finds_it_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of the service are gone before the next test, others are nobody's business."""
    async with NatsServer(tmp_path) as server:
        monkeypatch.setenv("TIMER_TEST_NATS_URL", server.url)
        async with await nats.connect(server.url) as connection:
            jetstream = connection.jetstream()
            for name in ("TIMER_CMD", "TIMER_EVT", "OTHER"):
                await jetstream.add_stream(name=name, subjects=[name])
            async with restartable_nats(Provision.EXTERNAL, tmp_path) as lent:
                assert lent.url == server.url
                assert [stream.config.name for stream in await jetstream.streams_info()] == ["OTHER"]


async def test_it_is_not_ours_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that stops its server is skipped."""
    async with NatsServer(tmp_path) as server:
        monkeypatch.setenv("TIMER_TEST_NATS_URL", server.url)
        async with restartable_nats(Provision.EXTERNAL, tmp_path) as lent:
            with pytest.raises(pytest.skip.Exception, match="not ours to stop"):
                await lent.terminate()
