"""The files in `deploy/`, and the program that checks them."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.check import FOLDER, FORGE, UNIT, checks
from timer_service import __version__
from timer_service.config import Config

ROOT = FOLDER.parent
FILES = [
    FOLDER / "Dockerfile",
    FOLDER / "compose.yaml",
    UNIT,
    FOLDER / "rabbitmq" / "definitions.json",
    *sorted((FOLDER / "kubernetes").glob("*.yaml")),
    *sorted((FOLDER / "prometheus").glob("*.yml")),
    *sorted(FORGE.glob("*/*.yml")),
]
STREAMS = {"TIMER_CMD", "TIMER_EVT", "TIMER_DLQ"}


def test_every_file_is_checked() -> None:
    """Each file for a tool of others is named in a check."""
    words = [word for check in checks(UNIT) for word in check.command]
    assert [str(each) for each in FILES if str(each) not in words] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_settings_exist(file: Path) -> None:
    """Each TIMER_ variable is a setting. A misspelt one would have no effect."""
    named = set(re.findall(r"\bTIMER_(?!SERVICE_)[A-Z_]+", file.read_text("utf-8")))
    assert named - STREAMS <= {f"TIMER_{field.upper()}" for field in Config.model_fields}


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("compose.yaml", r"stop_grace_period: (\d+)s"),
        ("kubernetes/sqlite.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("kubernetes/postgres.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("systemd/timer-service.service", r"TimeoutStopSec=(\d+)"),
    ],
)
def test_service_has_the_time_to_stop(file: str, pattern: str) -> None:
    """Nothing kills the process before it ends by itself: two seconds after the shutdown timeout."""
    (seconds,) = re.findall(pattern, (FOLDER / file).read_text("utf-8"))
    assert timedelta(seconds=int(seconds)) > Config().shutdown_timeout + timedelta(seconds=2)


@pytest.mark.parametrize("file", ["Dockerfile", "kubernetes/common.yaml", "kubernetes/sqlite.yaml"])
def test_ports_are_the_default(file: str) -> None:
    """The port of the pages is the one that the service uses."""
    assert re.search(rf"(?:EXPOSE|[pP]ort:) {Config().http_port}\b", (FOLDER / file).read_text("utf-8"))


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("kubernetes/sqlite.yaml", "image: timer-service:{}"),
        ("kubernetes/postgres.yaml", "image: timer-service:{}"),
        ("Dockerfile", 'org.opencontainers.image.version="{}"'),
    ],
)
def test_files_have_this_version(file: str, line: str) -> None:
    """The image, and the manifests that name it, have the version of the service."""
    assert f"{line.format(__version__)}\n" in (FOLDER / file).read_text("utf-8")


def test_files_of_the_image_reach_the_build() -> None:
    """`.dockerignore` lets through what the image is made of, and nothing else."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (FOLDER / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    everything, *let_through = (ROOT / ".dockerignore").read_text("utf-8").split("\n\n")[0].splitlines()[1:-1]
    assert everything == "*"
    assert {f"!{name}" for names in copied for name in names.split()} == set(let_through)
