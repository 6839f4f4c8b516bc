"""Packages for Node, from the registry of npm."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def install_packages(folder: Path, *packages: str) -> None:
    """Install packages, or those of its `package.json`, into a folder. Without Node, skip the test; in CI, fail it."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        absent = "node and npm are not installed"
        pytest.fail(absent) if os.environ.get("CI") == "true" else pytest.skip(absent)
    run_in(folder, "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", *packages)


def run_in(folder: Path, *command: str) -> str:
    """Run a command in a folder and return what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout
