"""The fence of deploy/redis/: a server that deploy/prepare.py prepares, and connections of its users."""

import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from tests.harness.prepared import prepare
from tests.harness.processes import Server, unused_port
from timer_service.adapters.embedded import REDIS


class FencedRedis(Server):
    """A server with the users `operator`, `timer-service`, `tenant-a` and `tenant-b`."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._folder = folder / "server"
        ran = prepare(self._folder, "--broker", "redis", "tenant-a", "tenant-b")
        assert ran.returncode == 0, ran.stderr
        self.port = unused_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        command = [str(program), str(self._folder / "redis.conf"), "--port", str(self.port)]
        super().__init__(command, folder / "redis.log", {})

    def add_tenant(self, name: str) -> str:
        """Run prepare.py for another tenant. Return its output."""
        return prepare(self._folder, "--broker", "redis", name).stdout

    def password_file(self, user: str) -> Path:
        """Return the file with the password of a user."""
        return self._folder / "passwords" / user

    @property
    def service_login(self) -> dict[str, str]:
        """Return the settings with the login of the service."""
        return {
            "TIMER_BROKER_USER": "timer-service",
            "TIMER_BROKER_PASSWORD_FILE": str(self.password_file("timer-service")),
        }

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator["User"]:
        """Yield a connection of a user."""
        password = self.password_file(name).read_text()
        async with Redis.from_url(
            self.url, username=name, password=password, encoding="latin-1", decode_responses=True
        ) as client:
            yield User(client)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"-NOAUTH"
        return False


class User:
    """A connection of a user."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def run(self, *words: Any) -> Any:
        """Run a command and return its reply. Raises `NoPermissionError` if the user may not."""
        return await self.client.execute_command(*words)

    async def is_refused(self, *words: Any) -> bool:
        """Return whether the server refuses a command because the user may not run it."""
        try:
            await self.run(*words)
        except NoPermissionError:
            return True
        return False

    @asynccontextmanager
    async def listen(self, *channels: str, pattern: bool = False) -> AsyncIterator[Any]:
        """Subscribe. Yield the subscription when the server has confirmed it."""
        async with self.client.pubsub() as subscription:
            await (subscription.psubscribe if pattern else subscription.subscribe)(*channels)
            for _ in channels:
                assert (await subscription.get_message(timeout=5))["type"].endswith("subscribe")
            yield subscription

    async def dump(self) -> dict[str, Any]:
        """Return everything that the server stores. Only the operator may."""
        return {key: await self.run("DUMP", key) for key in sorted(await self.run("KEYS", "*"))}


def programs() -> dict[str, Path]:
    """Return the installed servers: that of the wheel, and the one of the system."""
    found = {"wheel": REDIS.find()}
    if installed := shutil.which("redis-server"):
        found["installed"] = Path(installed)
    return found
