"""A RabbitMQ server for tests. It leaves no process behind: it gets an epmd of its own, which ends with it."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.harness.processes import Server, unused_port
from tests.harness.spawn import Spawned, spawn
from tests.harness.waiting import until

_BIN = Path("/usr/lib/rabbitmq/bin")
"""The programs of Debian. `rabbitmq-server` on PATH runs as another user."""

_CHUNK = struct.Struct(">xBhiqqqiii")
"""The header of a chunk: kind, entries, records, time, epoch, first offset, checksum, and the sizes of its parts."""
_CHUNK_BYTES = 48
_FIRST_AT = 24
_USER = 0


def is_installed() -> bool:
    """Return whether the server and its epmd are there."""
    return (_BIN / "rabbitmq-server").exists() and shutil.which("epmd") is not None


class RabbitServer(Server):
    """A RabbitMQ with streams that keeps its data and its ports across restarts. All its ports are on loopback."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._epmd: Spawned | None = None
        self.port, self.stream_port, distribution, epmd_port = (unused_port() for _ in range(4))
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/?stream_port={self.stream_port}"
        (folder / "enabled_plugins").write_text("[rabbitmq_stream].")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self.stream_port}\n"
            f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {self.stream_port}\n"
            "disk_free_limit.absolute = 1MB\n"
        )
        environment = {
            "HOME": str(folder),  # of the Erlang cookie
            "RABBITMQ_NODENAME": f"timer-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "ERL_CRASH_DUMP": str(folder / "crash"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        super().__init__([str(_BIN / "rabbitmq-server")], folder / "rabbitmq.log", environment)

    def launch(self) -> None:
        """Start the server, and epmd before it: otherwise it starts one that stays."""
        if self._epmd is None:
            port = self._environment["ERL_EPMD_PORT"]
            self._epmd = spawn(
                ["epmd", "-address", "127.0.0.1", "-port", port],
                self.log,
                environment=self._environment,
                cwd=Path.cwd(),
            )
        (self._folder / "pid").unlink(missing_ok=True)
        super().launch()

    async def ensure_started(self) -> None:
        """Start the server, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            await self.start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server, of which the process that was started is only the shell."""
        if number != signal.SIGKILL or (self._folder / "pid").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((self._folder / "pid").read_text()), number)
        else:
            super().signal(number)

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and its epmd."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait(10)
        if self._epmd is not None:
            self._epmd.send_signal(signal.SIGKILL)
            self._epmd.wait(10)

    async def kill(self) -> None:
        """Kill it as soon as it has saved where its streams and quorum queues are.

        It loses those that were created in the second before.
        """
        begun = time.time()  # a change may be written only later
        await until(
            lambda: time.time() - max([begun, *(each.stat().st_mtime for each in self._names())]) > 1, pause=0.1
        )
        await super().kill()

    def lose_streams(self) -> None:
        """Let the server, which was killed, not know where its streams are."""
        for each in self._names():
            each.unlink()

    def _names(self) -> list[Path]:
        """Return the files with where its streams and quorum queues are."""
        return list((self._folder / "mnesia").glob("*/*/*/names.dets"))

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl, which takes a second, and return its output."""
        command = [str(_BIN / "rabbitmqctl"), "--quiet", *arguments]
        environment = {**os.environ, **self._environment}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    async def limit_messages(self, most_bytes: int) -> None:
        """Set the size of the largest message that the server takes. RabbitMQ 4 keeps the setting in another place."""
        in_force = f"persistent_term:put(max_message_size, {most_bytes})"
        change = f"application:set_env(rabbit, max_message_size, {most_bytes}), {in_force}."
        await asyncio.to_thread(self.ctl, "eval", change)

    def stream_folder(self, name: str) -> Path:
        """Return the folder with the messages of a stream."""
        (found,) = (self._folder / "mnesia").glob(f"*/stream/__{name.replace('.', '_')}_*")
        return found

    def replace_stream(self, name: str, folder: Path) -> None:
        """Replace the messages of a stream by those in a folder, and let the server read them."""
        current = self.stream_folder(name)
        current.rename(folder.parent / secrets.token_hex(8))
        shutil.copytree(folder, current)
        servers = "{Name, Pid, _, _} <- supervisor:which_children(osiris_server_sup)"
        is_stream = f'iolist_to_binary(Name) =:= <<"{current.name}">>'  # a string in RabbitMQ 3, a binary in 4
        self.ctl("eval", f"[exit(Pid, kill) || {servers}, {is_stream}].")

    def _ready(self) -> bool:
        for port in (self.port, self.stream_port):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
        return True


@contextlib.asynccontextmanager
async def memory_alarm(server: RabbitServer) -> AsyncIterator[None]:
    """Let the server have too little memory."""
    await asyncio.to_thread(server.ctl, "set_vm_memory_high_watermark", "0")
    try:
        yield
    finally:
        await asyncio.to_thread(server.ctl, "set_vm_memory_high_watermark", "0.6")


def remove_chunks(folder: Path, number: int) -> None:
    """Remove so many of the oldest messages from the only segment of a stream, as if they had expired.

    Each message must have a chunk of its own. The broker removes whole segments, and begins each one with own entries.
    """
    (segment,) = folder.glob("*.segment")
    old = segment.read_bytes()
    chunks: list[tuple[int, int, bytes]] = []
    at = 8
    while at < len(old):
        kind, _, _, _, _, first, _, size, trailer = _CHUNK.unpack_from(old, at)
        end = at + _CHUNK_BYTES + size + trailer
        chunks.append((kind, first, old[at:end]))
        at = end
    begin = [first for kind, first, _ in chunks if kind == _USER][number]
    kept, index, at = b"OSIL\0\0\0\1", b"OSII\0\0\0\1", begin
    for kind, first, chunk in chunks:
        if kind == _USER and first < begin:
            continue
        to = first if first >= begin else begin - 1
        _, _, _, stored_at, epoch, *_ = _CHUNK.unpack_from(chunk)
        index += struct.pack(">qqqiB", to, stored_at, epoch, len(kept), kind)
        kept += chunk[:_FIRST_AT] + struct.pack(">q", to) + chunk[_FIRST_AT + 8 :]
        at = min(at, to)
    segment.unlink()
    segment.with_suffix(".index").unlink()
    (folder / f"{at:020}.segment").write_bytes(kept)
    (folder / f"{at:020}.index").write_bytes(index)
