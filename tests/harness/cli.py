"""The command line as a process of its own."""

import asyncio
import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.harness.processes import PATIENCE_SECONDS, unused_port
from tests.harness.spawn import TIMER_SERVICE, spawn


class Cli:
    """Runs `timer-service` in a folder, with the settings of a test."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder = folder
        self.audit: list[dict[str, Any]] = []
        """The lines of the audit log that the last command of `lines` wrote."""
        self.program = [TIMER_SERVICE]
        self.settings = {
            "TIMER_BROKER_URL": broker_url,
            "TIMER_DB_PATH": str(folder / "service" / "timers.db"),
            "TIMER_HTTP_PORT": str(unused_port()),
            "TZ": "UTC",
        }

    async def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        with TemporaryDirectory() as folder:
            output, errors = Path(folder) / "stdout", Path(folder) / "stderr"
            command = [*self.program, *arguments]
            process = spawn(command, output, errors, environment={**self.settings, **settings}, cwd=self.folder)
            code = await asyncio.to_thread(process.wait, PATIENCE_SECONDS)
            return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())

    async def lines(self, *arguments: str) -> list[str]:
        """Run a command that must succeed, and return its output. Its errors are only lines of the audit log."""
        done = await self.run(*arguments)
        errors = done.stderr.splitlines()
        self.audit = [json.loads(line) for line in errors if line.startswith('{"event": "operator action"')]
        assert (done.returncode, errors[len(self.audit) :]) == (0, [])
        return done.stdout.splitlines()

    async def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command with --json, and return the document that it prints."""
        done = await self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)


async def statuses(cli: Cli, code: int) -> dict[str, str]:
    """Run `doctor`, which must end with a code, and return the status of each check."""
    document = await cli.json("doctor", code=code)
    assert document["ok"] is (code == 0)
    return {each["check"]: each["status"] for each in document["checks"]}
