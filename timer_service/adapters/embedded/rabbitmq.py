"""How a RabbitMQ server is run."""

import os
import secrets
import shutil
from pathlib import Path

from timer_service.adapters.embedded.server import HOST, Launch, Program, free_port
from timer_service.core.values.errors import StartError

_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server itself. The program of this name on the PATH would run it as another user."""
_PORT = 5672
_STREAM_PORT = 5552

_SETTINGS = """\
listeners.tcp.1 = {host}:{port}
max_message_size = 4194304
stream.listeners.tcp.1 = {host}:{stream_port}
stream.advertised_host = {host}
cluster_name = {name}
"""

# Erlang would leave an epmd behind, the program that knows the ports of nodes. So it gets one that ends with it.
_COMMAND = f'epmd -port "$1" -address {HOST} & exec "$2"'


def _find() -> Path:
    installed = shutil.which("rabbitmq-server")
    found = _DEBIAN if _DEBIAN.is_file() else Path(installed) if installed else None
    if found is None or shutil.which("epmd") is None:
        raise StartError(
            "rabbitmq-server is not installed, and pip cannot install it. On Debian: apt-get install rabbitmq-server"
        )
    return found


def _prepare(binary: Path, folder: Path, name: str, port: int) -> Launch:
    """Write the files that configure the server. It reads no other ones, such as those in /etc/rabbitmq."""
    folder = folder.resolve()
    stream_port = free_port(_STREAM_PORT) if port == _PORT else _inner_port()
    epmd_port = str(_inner_port())
    (folder / "rabbitmq.conf").write_text(_SETTINGS.format(host=HOST, port=port, stream_port=stream_port, name=name))
    (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")},
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": HOST,
        "ERL_EPMD_PORT": epmd_port,
        # The name of the node is part of its files, so it is the same wherever the folder is.
        "RABBITMQ_NODENAME": "timer-service@localhost",
        "RABBITMQ_DIST_PORT": str(_inner_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONFIG_FILES": str(folder / "conf.d"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # The script becomes the server, so that signals and the exit code are those of the server.
        "RUNNING_UNDER_SYSTEMD": "true",
        "NOTIFY_SOCKET": "",
    }
    url = f"amqp://{HOST}:{port}?stream_port={stream_port}"
    return Launch(url, ("/bin/sh", "-c", _COMMAND, "sh", epmd_port, str(binary)), environment)


def _inner_port() -> int:
    """Return a free port that no system gives to a connection: the server listens on it only after a second."""
    return free_port(10_000 + secrets.randbelow(10_000))


RABBITMQ = Program(label="RabbitMQ", name="rabbitmq-server", port=_PORT, find=_find, prepare=_prepare, start_seconds=60)
