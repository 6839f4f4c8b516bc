"""The `timer-service dev` of a folder: the file that says how it was started last, and whether it runs."""

import json
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

DEFAULT_FOLDER = Path(".timer-service")
"""Where `dev` keeps its files, and where other programs look for a running `dev`."""


class BrokerKind(StrEnum):
    """A broker that `dev` can run. The value is its name on the command line, and its folder in that of `dev`."""

    NATS = "nats"
    REDIS = "redis"
    RABBITMQ = "rabbitmq"


_FILE = "dev.json"
_NAME = "embedded-"
_HOSTS = ("localhost", "127.0.0.1", "::1")
_KINDS = {"nats": BrokerKind.NATS, "redis": BrokerKind.REDIS, "amqp": BrokerKind.RABBITMQ}
_NATS_GREETING = b"INFO "
_REDIS_QUESTION = b"PING\r\nCONFIG GET proc-title-template\r\n"
_AMQP_QUESTION = b"AMQP\x00\x00\x09\x01"
_AMQP_NAME = b"\x0ccluster_nameS"
_GREETING_BYTES = 64 * 1024
_CONNECT_SECONDS = 1
_GREETING_SECONDS = 5


@dataclass(frozen=True, slots=True)
class DevServer:
    """The last start of a `timer-service dev`."""

    pid: int
    broker_url: str
    db_path: Path
    http_host: str
    http_port: int
    server_name: str
    """The name of its broker, at each start."""

    @property
    def broker(self) -> BrokerKind:
        """The kind of its broker."""
        return broker_kind(self.broker_url)

    @property
    def broker_port(self) -> int:
        """The port of the broker."""
        return urlsplit(self.broker_url).port or 0


def read_dev_server(folder: Path = DEFAULT_FOLDER) -> DevServer | None:
    """Return the last start of the `dev` with its files in `folder`.

    Returns None if it was never started, or if others could write the file, or if it names another machine.
    """
    try:
        if not _is_ours(folder / _FILE):
            return None
        content = json.loads((folder / _FILE).read_text("utf-8"))
        server = DevServer(
            pid=int(content["pid"]),
            broker_url=(url := str(content["brokerUrl"])),
            db_path=Path(content["database"]),
            http_host=str(content["httpHost"]),
            http_port=int(content["httpPort"]),
            server_name=broker_name(folder / broker_kind(url)),
        )
        is_local = urlsplit(server.broker_url).hostname in _HOSTS and server.broker_port > 0
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return server if is_local else None


def find_dev_server(folder: Path = DEFAULT_FOLDER) -> DevServer | None:
    """Return the `dev` that runs with its files in `folder`, or None."""
    server = read_dev_server(folder)
    return server if server is not None and ask_name(server.broker_url) == server.server_name else None


def is_dev_server(broker_url: str) -> bool:
    """Return whether the broker at this address is that of a `dev`, of whichever folder."""
    return str(ask_name(broker_url)).startswith(_NAME)


def announce_dev_server(folder: Path, *, broker_url: str, db_path: Path, http_host: str, http_port: int) -> None:
    """Write that this process is the `dev` of `folder`.

    The file stays when `dev` has ended. So the next start finds its ports, and it is known that the folder has a `dev`.
    """
    file, draft = folder / _FILE, folder / f"{_FILE}.tmp"
    content = {
        "pid": os.getpid(),
        "brokerUrl": broker_url,
        "database": str(db_path.absolute()),
        "httpHost": http_host,
        "httpPort": http_port,
    }
    draft.write_text(json.dumps(content) + "\n", "utf-8")
    draft.chmod(0o600)
    draft.replace(file)


def broker_kind(broker_url: str) -> BrokerKind:
    """Return the broker of the URL of a `dev`. Raises KeyError if it is the URL of something else."""
    return _KINDS[urlsplit(broker_url).scheme]


def broker_name(data_dir: Path) -> str:
    """Return the name of the broker that keeps its files in `data_dir`. Raises OSError if there is no such folder.

    It is the same at each start. No other folder has it, also no copy.
    """
    folder = data_dir.stat()
    return f"{_NAME}{folder.st_dev:x}-{folder.st_ino:x}"


def ask_name(broker_url: str) -> str | None:
    """Return the name of the broker that listens at an address; None if there is none, or another program."""
    try:
        address = urlsplit(broker_url)
        question, read_name = _QUESTIONS[broker_kind(broker_url)]
        with socket.create_connection((address.hostname, address.port), _CONNECT_SECONDS) as connection:
            connection.settimeout(_GREETING_SECONDS)
            connection.sendall(question)
            with connection.makefile("rb") as stream:
                return read_name(stream)
    except (OSError, ValueError, KeyError, RecursionError, OverflowError):
        return None


def _read_nats_name(stream: BinaryIO) -> str | None:
    """Return `server_name` of the greeting."""
    greeting = stream.readline(_GREETING_BYTES)
    info = json.loads(greeting.removeprefix(_NATS_GREETING)) if greeting.startswith(_NATS_GREETING) else None
    return info.get("server_name") if isinstance(info, dict) else None


def _read_redis_name(stream: BinaryIO) -> str | None:
    """Return the last word of the template for the title of the process.

    The first reply is another one if the server still loads its files, or wants a login.
    """
    if stream.readline(_GREETING_BYTES) != b"+PONG\r\n":
        return None
    *_, template = [stream.readline(_GREETING_BYTES) for _ in range(5)]
    return template.decode().split()[-1] if template else None


def _read_amqp_name(stream: BinaryIO) -> str | None:
    """Return `cluster_name` of the properties of the server, which are a table of types, lengths and values."""
    size = int.from_bytes(stream.read(7)[3:], "big")
    _, found, text = stream.read(min(size, _GREETING_BYTES)).partition(_AMQP_NAME)
    return text[4 : 4 + int.from_bytes(text[:4], "big")].decode() if found else None


_QUESTIONS: dict[BrokerKind, tuple[bytes, Callable[[BinaryIO], str | None]]] = {
    BrokerKind.NATS: (b"", _read_nats_name),
    BrokerKind.REDIS: (_REDIS_QUESTION, _read_redis_name),
    BrokerKind.RABBITMQ: (_AMQP_QUESTION, _read_amqp_name),
}
"""What a client sends first, and how it reads the name of the server."""


def _is_ours(file: Path) -> bool:
    """Return whether only this user could write the file: programs send their login to the broker that it names."""
    status = file.stat()
    others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not others_may_write
