"""The file that leads other commands to a running `timer-service dev`: its process, broker and database."""

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from timer_service.config import Config, load_config

DEFAULT_FOLDER = Path(".timer-service")
"""Where `dev` keeps its files, and where the other commands look for a running `dev`."""

_DATABASE_SETTINGS = {"db_path", "database_url", "database_url_file"}
_FILE = "dev.json"
_CONNECT_SECONDS = 1


@dataclass(frozen=True, slots=True)
class DevServer:
    """A running `timer-service dev`."""

    pid: int
    broker_url: str
    db_path: Path
    http_host: str
    http_port: int

    def configure(self, config: Config) -> Config:
        """Return settings that name the broker, the database and the HTTP pages of this server."""
        update = {
            "broker_url": self.broker_url,
            "db_path": self.db_path,
            "database_url": None,
            "database_url_file": None,
            "http_host": self.http_host,
            "http_port": self.http_port,
        }
        return config.model_copy(update=update)


def find_dev_server(folder: Path = DEFAULT_FOLDER) -> DevServer | None:
    """Return the `dev` that runs with its files in `folder`. A file that a killed `dev` left behind is ignored."""
    try:
        if not _is_ours(folder / _FILE):
            return None
        content = json.loads((folder / _FILE).read_text("utf-8"))
        server = DevServer(
            pid=int(content["pid"]),
            broker_url=str(content["brokerUrl"]),
            db_path=Path(content["database"]),
            http_host=str(content["httpHost"]),
            http_port=int(content["httpPort"]),
        )
        return server if _is_running(server) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def database_config() -> Config:
    """Return the settings, with the database of the `dev` of this folder if it runs and no database is named."""
    config = load_config()
    if not config.model_fields_set & _DATABASE_SETTINGS and (dev := find_dev_server()) is not None:
        return dev.configure(config)
    return config


@contextmanager
def announce_dev_server(folder: Path, config: Config) -> Iterator[None]:
    """Write the file for other commands, and remove it at the end of the block."""
    file, draft = folder / _FILE, folder / f"{_FILE}.tmp"
    content = {
        "pid": os.getpid(),
        "brokerUrl": config.broker_url,
        "database": str(config.db_path.absolute()),
        "httpHost": config.http_host,
        "httpPort": config.http_port,
    }
    draft.write_text(json.dumps(content) + "\n", "utf-8")
    draft.chmod(0o600)
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _is_ours(file: Path) -> bool:
    """Return whether only this user could write the file: commands send their login to the broker that it names."""
    status = file.stat()
    others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not others_may_write


def _is_running(server: DevServer) -> bool:
    """Return whether the process exists and its broker, on this machine, accepts connections. Raises OSError."""
    address = urlsplit(server.broker_url)
    if address.hostname not in {"localhost", "127.0.0.1", "::1"} or server.pid <= 0:
        return False
    if server.pid == os.getpid():  # in a container, a restarted `dev` often has the same pid as the killed one
        return False
    with suppress(PermissionError):  # the process of another user exists, too
        os.kill(server.pid, 0)
    with socket.create_connection((address.hostname, address.port or 0), _CONNECT_SECONDS):
        return True
