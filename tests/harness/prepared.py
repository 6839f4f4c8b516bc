"""The servers of the files that deploy/prepare.py makes, on free ports."""

import re
import subprocess
import sys
from pathlib import Path

from tests.harness.fence import DEPLOY
from tests.harness.processes import NatsServer


def prepare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run prepare.py."""
    return subprocess.run(
        [sys.executable, DEPLOY / "prepare.py", folder, *arguments], capture_output=True, text=True, check=False
    )


class Prepared:
    """A folder of prepare.py."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Run prepare.py."""
        ran = prepare(folder, *arguments)
        assert ran.returncode == 0, ran.stderr
        self._folder = folder

    def broker(self, folder: Path) -> NatsServer:
        """Return the server, with its streams in a folder."""
        return NatsServer(folder, config=self.read("nats.conf"))

    def read(self, name: str) -> str:
        """Return the configuration in a file, with the files that it includes."""
        config = (self._folder / name).read_text()
        config = config.replace('include "tenants.conf"', (self._folder / "tenants.conf").read_text())
        return re.sub(r'store_dir: "[^"]*"', 'store_dir: "/data"', config)

    def password_file(self, user: str) -> Path:
        """Return the file with the password of a user."""
        return self._folder / "passwords" / user

    def password(self, user: str) -> str:
        """Return the password of a user."""
        return self.password_file(user).read_text().strip()
