"""The fence of deploy/rabbitmq/: a server with the users of deploy/prepare.py, and connections of these users."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection

from tests.harness.prepared import prepare
from tests.harness.processes import unused_port
from timer_service.adapters.embedded import RABBITMQ, embedded_server


class FencedRabbit:
    """A server with the users `operator`, `timer-service`, `tenant-a` and `tenant-b`."""

    def __init__(self, url: str, prepared: Path) -> None:
        self.url = url
        """Without a login."""
        self._prepared = prepared

    def password_file(self, user: str) -> Path:
        """Return the file with the password of a user."""
        return self._prepared / "passwords" / user

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[AbstractConnection]:
        """Yield a connection of a user."""
        login = f"{name}:{self.password_file(name).read_text()}"
        connection = await aiormq.connect(self.url.partition("?")[0].replace("://", f"://{login}@"))
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def fenced_rabbit(folder: Path) -> AsyncIterator[FencedRabbit]:
    """Run a server with the prepared files, but at ports of its own."""
    prepared = folder / "prepared"
    ran = await asyncio.to_thread(prepare, prepared, "--broker", "rabbitmq", "tenant-a", "tenant-b")
    assert ran.returncode == 0, ran.stderr
    settings = re.sub(r"^.*listeners\..*$", "", (prepared / "rabbitmq.conf").read_text(), flags=re.MULTILINE)
    more = folder / "server" / "conf.d"
    more.mkdir(parents=True)
    (more / "prepared.conf").write_text(settings.replace("/etc/rabbitmq", str(prepared)))
    async with embedded_server(RABBITMQ, folder / "server", unused_port()) as (url, _):
        yield FencedRabbit(url, prepared)


@asynccontextmanager
async def channel(connection: AbstractConnection) -> AsyncIterator[AbstractChannel]:
    """Yield a channel. A refusal of the server closes it."""
    opened = await connection.channel(publisher_confirms=True)
    try:
        yield opened
    finally:
        if not opened.is_closed:
            await opened.close()


async def count_messages(connection: AbstractConnection, *queues: str) -> dict[str, Any]:
    """Return how many messages wait in each queue."""
    async with channel(connection) as opened:
        return {name: (await opened.queue_declare(name, passive=True)).message_count for name in queues}
