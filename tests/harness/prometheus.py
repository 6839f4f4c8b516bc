"""A real Prometheus that scrapes services with the alerts of `deploy/prometheus`."""

import asyncio
import json
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.processes import Server, unused_port

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None and not os.environ.get("CI"), reason="prometheus is not installed"
)


class Prometheus(Server):
    """Prometheus on loopback, with the configuration of `deploy/`. It scrapes given ports every second."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        folder.mkdir(parents=True)
        self._page = f"http://127.0.0.1:{unused_port()}"
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(_configuration(ports)))
        assert PROMETHEUS is not None, "prometheus is not installed"
        command = [
            PROMETHEUS,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._page.removeprefix('http://')}",
        ]
        super().__init__(command, folder / "prometheus.log", {})

    async def query(self, expr: str) -> list[Any]:
        """Return the series of a query."""
        data = await self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
        result: list[Any] = data["result"]
        return result

    async def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire: their names, and their tables or flows."""
        return {
            (labels["alertname"], labels.get("table") or labels.get("flow", ""))
            for alert in (await self._get("/api/v1/alerts"))["alerts"]
            for labels in [alert["labels"]]
            if alert["state"] == "firing"
        }

    async def until_firing(self, is_enough: Callable[[set[tuple[str, str]]], bool], seconds: float) -> None:
        """Wait until the alerts that fire are enough. An error shows the ones that fired last."""
        firing: set[tuple[str, str]] = set()
        try:
            async with asyncio.timeout(seconds):
                while not is_enough(firing := await self.firing()):
                    await asyncio.sleep(0.5)
        except TimeoutError as error:
            raise AssertionError(f"firing: {sorted(firing)}") from error

    async def _get(self, path: str) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            with urllib.request.urlopen(f"{self._page}{path}", timeout=10) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data

        return await asyncio.to_thread(read)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._page}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _configuration(ports: Sequence[int]) -> dict[str, Any]:
    """Return the configuration of `deploy/`, with other targets and shorter intervals."""
    configuration: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    (job,) = configuration["scrape_configs"]
    targets = {"targets": [f"127.0.0.1:{port}" for port in ports]}
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / name) for name in configuration["rule_files"]],
        "scrape_configs": [{"job_name": job["job_name"], "static_configs": [targets]}],
    }
