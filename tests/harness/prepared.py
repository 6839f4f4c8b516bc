"""The servers of the files that deploy/prepare.py makes, on free ports."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.harness.fence import DEPLOY, password_of
from tests.harness.processes import NatsServer, unused_port


def prepare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run prepare.py."""
    return subprocess.run(
        [sys.executable, DEPLOY / "prepare.py", folder, *arguments], capture_output=True, text=True, check=False
    )


class Front(NatsServer):
    """A server in front of a tenant. It has started when its link is open."""

    def _answers(self) -> bool:
        return super()._answers() and "JetStream using domains" in self.log.read_text()


class Prepared:
    """A folder of prepare.py."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Run prepare.py. Use 4222 as the port of each server in front."""
        ran = prepare(folder, *arguments)
        assert ran.returncode == 0, ran.stderr
        self._folder = folder
        self._link_port = unused_port()

    @classmethod
    def with_known_passwords(cls, folder: Path, *arguments: str) -> Self:
        """Run prepare.py. The users of tests/harness/fence.py have their passwords."""
        (folder / "passwords").mkdir(parents=True)
        for user in ("operator", "timer-service", "tenant-a", "tenant-b"):
            (folder / "passwords" / user).write_text(password_of(user))
        return cls(folder, *arguments)

    def broker(self, folder: Path) -> NatsServer:
        """Return the server, with its streams in a folder."""
        return NatsServer(folder, config=self.read("nats.conf"))

    def front(self, folder: Path, tenant: str = "tenant-a") -> Front:
        """Return the server in front of a tenant."""
        return Front(folder, config=self.read(f"fronts/{tenant}.conf"))

    @property
    def link_port(self) -> int:
        """The port on which the server listens for links."""
        return self._link_port

    @property
    def secret(self) -> str:
        """With what the subjects on the link of tenant-a begin."""
        return self.read("fronts/tenant-a.conf").partition('{ service: "')[2].partition(".")[0]

    def read(self, name: str) -> str:
        """Return the configuration in a file, with the files that it includes, and a free port for the links."""
        config = (self._folder / name).read_text()
        config = config.replace('include "tenants.conf"', (self._folder / "tenants.conf").read_text())
        config = re.sub(r'store_dir: "[^"]*"', 'store_dir: "/data"', config)
        return config.replace("127.0.0.1:7422", f"127.0.0.1:{self._link_port}")

    def password_file(self, user: str) -> Path:
        """Return the file with the password of a user."""
        return self._folder / "passwords" / user

    def password(self, user: str) -> str:
        """Return the password of a user."""
        return self.password_file(user).read_text().strip()
