"""The files in `deploy/`, and the program that checks them."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.check import FOLDER, UNIT, Check, checks, passes, runnable
from timer_service import __version__
from timer_service.config import Config

ROOT = FOLDER.parent
FILES = [
    FOLDER / "Dockerfile",
    FOLDER / "compose.yaml",
    UNIT,
    *sorted((FOLDER / "kubernetes").glob("*.yaml")),
    *sorted((FOLDER / "prometheus").glob("*.yml")),
]
STREAMS = {"TIMER_CMD", "TIMER_EVT", "TIMER_DLQ"}
PRINTS = "print('a warning')"


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


def test_log_of_the_broker_has_a_limit() -> None:
    """Docker keeps a limited log of the server. A tenant can make it log as much as it likes."""
    broker = (FOLDER / "compose.yaml").read_text("utf-8").partition("\n  nats:\n")[2].partition("\n\n")[0]
    assert re.search(r"\bmax-size: \d+m\b.*\bmax-file: \"\d\"", broker)


@pytest.mark.parametrize("file", ["Dockerfile", "kubernetes/common.yaml", "kubernetes/sqlite.yaml"])
def test_ports_are_the_default(file: str) -> None:
    """The port of the pages is the one that the service uses."""
    assert re.search(rf"(?:EXPOSE|[pP]ort:) {Config().http_port}\b", (FOLDER / file).read_text("utf-8"))


@pytest.mark.parametrize("file", ["sqlite.yaml", "postgres.yaml"])
def test_manifests_have_this_version(file: str) -> None:
    """The image of the manifests has the version of the service."""
    assert f"image: timer-service:{__version__}\n" in (FOLDER / "kubernetes" / file).read_text("utf-8")


def test_files_of_the_image_reach_the_build() -> None:
    """`.dockerignore` lets through what the image is made of, and nothing else."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (FOLDER / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    everything, *let_through = (ROOT / ".dockerignore").read_text("utf-8").split("\n\n")[0].splitlines()[1:-1]
    assert everything == "*"
    assert {f"!{name}" for names in copied for name in names.split()} == set(let_through)


@pytest.mark.parametrize(
    ("program", "silent", "passed"),
    [("pass", True, True), (PRINTS, False, True), (PRINTS, True, False), ("raise SystemExit(1)", False, False)],
)
def test_result_of_a_check(program: str, *, silent: bool, passed: bool) -> None:
    """A check fails by its exit code. If the tool ends with 0 in any case, any output is a failure."""
    assert passes(Check("a file", (sys.executable, "-c", program), silent)) is passed


@pytest.mark.parametrize(("ci", "passed"), [("", True), ("true", False)])
def test_missing_tool(
    ci: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, passed: bool
) -> None:
    """A tool that is not installed is reported. It is a failure only if CI is set."""
    monkeypatch.setenv("CI", ci)
    assert passes(Check("a file", ("no-such-tool",))) is passed
    assert capsys.readouterr().out == "a file: NOT CHECKED: no-such-tool is not installed\n"


def test_program_of_the_unit_exists_in_the_checked_copy(tmp_path: Path) -> None:
    """The copy that is checked differs only in the path of the program."""
    before, after = (each.read_text("utf-8").splitlines() for each in (UNIT, runnable(UNIT, tmp_path)))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [("ExecStart=/opt/timer-service/bin/timer-service serve", f"ExecStart={sys.executable} serve")]
