"""How a RabbitMQ server is run."""

import os
import secrets
import shutil
from pathlib import Path
from shlex import quote

from timer_service.adapters.embedded.server import HOST, Launch, Program, free_port
from timer_service.core.values.errors import StartError

_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server itself. The program of this name on the PATH would run it as another user."""
_STREAM_PORT = 5552

_SETTINGS = """\
listeners.tcp.1 = {host}:{port}
stream.listeners.tcp.1 = {host}:{stream_port}
cluster_name = {name}
"""

# A shell reads this file. With RABBITMQ_CONF_ENV_FILE, rabbitmqctl uses it too. The name of the node is the same in every
# folder, because it is that of the folder with the messages: so a folder can be moved.
_ENVIRONMENT = """\
export HOME={folder} ERL_EPMD_PORT={epmd_port} ERL_EPMD_ADDRESS={host}
NODENAME=timer-service@localhost
DIST_PORT={node_port}
MNESIA_BASE={folder}/mnesia
LOG_BASE={folder}
LOGS=-
CONFIG_FILE={folder}/rabbitmq.conf
CONFIG_FILES={folder}/conf.d/*.conf
ADVANCED_CONFIG_FILE={folder}/advanced.config
ENABLED_PLUGINS_FILE={folder}/enabled_plugins
SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {{127,0,0,1}}'
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
    """Write the files that configure the server."""
    stream_port, epmd_port, node_port = free_port(_STREAM_PORT), _inner_port(), _inner_port()
    settings = _SETTINGS.format(host=HOST, port=port, stream_port=stream_port, name=name)
    environment = _ENVIRONMENT.format(
        folder=quote(str(folder.resolve())), host=HOST, epmd_port=epmd_port, node_port=node_port
    )
    file = folder / "rabbitmq-env.conf"
    file.write_text(environment, "utf-8")
    (folder / "rabbitmq.conf").write_text(settings, "utf-8")
    (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n", "utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")}
    return Launch(
        f"amqp://{HOST}:{port}?stream_port={stream_port}",
        ("/bin/sh", "-c", _COMMAND, "sh", str(epmd_port), str(binary)),
        # RUNNING_UNDER_SYSTEMD: the script becomes the server, so that signals and the exit code are those of the server.
        {**inherited, "RABBITMQ_CONF_ENV_FILE": str(file), "NOTIFY_SOCKET": "", "RUNNING_UNDER_SYSTEMD": "true"},
    )


def _inner_port() -> int:
    """Return a free port that no system gives to a connection: the server listens on it only after a second."""
    return free_port(10_000 + secrets.randbelow(10_000))


RABBITMQ = Program(
    label="RabbitMQ", name="rabbitmq-server", port=5672, find=_find, prepare=_prepare, start_seconds=60
)
