"""Checks the files in this folder, and those of the forge, with the tools of their formats: `make check-deploy`.

A tool that is not installed is reported, and is a failure if CI is set.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

FOLDER = Path(__file__).parent
KUBERNETES = tuple(map(str, sorted((FOLDER / "kubernetes").glob("*.yaml"))))
FORGE = FOLDER.parent / ".github"
FORGE_SCHEMAS = {"workflows": "vendor.github-workflows", "ISSUE_TEMPLATE": "vendor.github-issue-forms"}
"""The folders of the forge, with the schemas of their files."""
UNIT = FOLDER / "systemd" / "timer-service.service"
PROMETHEUS = {"prometheus.yml": "check config", "alerts.yml": "check rules", "alerts_test.yml": "test rules"}
"""The files of Prometheus, with the commands of promtool that check them."""


class Check(NamedTuple):
    """A command that checks some files."""

    files: str
    command: tuple[str, ...]
    silent: bool = False
    """Whether every output is a complaint, because the exit code does not tell."""


def checks(unit: Path) -> Iterator[Check]:
    """Yield all checks. `unit` is the unit of systemd with a program that exists."""
    yield Check("Dockerfile", ("hadolint", "--failure-threshold", "info", str(FOLDER / "Dockerfile")))
    compose = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml"))
    yield Check("compose.yaml", compose)
    for name, schema in FORGE_SCHEMAS.items():
        files = map(str, sorted((FORGE / name).glob("*.yml")))
        yield Check(f".github/{name}/", ("check-jsonschema", "--builtin-schema", schema, *files))
    definitions = str(FOLDER / "rabbitmq" / "definitions.json")
    yield Check("rabbitmq/definitions.json", (sys.executable, "-m", "json.tool", definitions, os.devnull))
    yield Check("kubernetes/", ("kubernetes-validate", "--strict", "--quiet", *KUBERNETES))
    yield Check("systemd/", ("systemd-analyze", "verify", "--man=no", str(unit)), silent=True)
    for name, command in PROMETHEUS.items():
        yield Check(f"prometheus/{name}", ("promtool", *command.split(), str(FOLDER / "prometheus" / name)))


def find(tool: str) -> str | None:
    """Return the path of a tool: beside this Python, or on the PATH."""
    return shutil.which(tool, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


def runnable(unit: Path, folder: Path) -> Path:
    """Write a copy of a unit whose program exists here: systemd looks whether it can be executed."""
    copy = folder / unit.name
    copy.write_text(re.sub(r"^(ExecStart=)\S+", rf"\g<1>{sys.executable}", unit.read_text("utf-8"), flags=re.MULTILINE))
    return copy


def passes(check: Check) -> bool:
    """Run a check, print its output and its result, and return whether it passed."""
    tool, *arguments = check.command
    found = find(tool)
    if found is None:
        print(f"{check.files}: NOT CHECKED: {tool} is not installed")
        return not os.environ.get("CI")
    done = subprocess.run([found, *arguments], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    passed = done.returncode == 0 and not (check.silent and done.stdout)
    print(done.stdout, end="")
    print(f"{check.files}: {'ok' if passed else 'FAILED'}")
    return passed


def main() -> int:
    """Run all checks. Return the exit code."""
    with TemporaryDirectory() as folder:
        results = [passes(check) for check in checks(runnable(UNIT, Path(folder)))]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
