"""The sdist and the wheel: they hold the package and nothing else, and their README leads to the repository."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from timer_service import __version__

ROOT = Path(__file__).parents[2]
TOP = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", ".gitignore")
STRAYS = (".env", "timers.db", "docs/notes.md", "timer_service/notes.txt", "timer_service/ui/static/page.css.orig")
NAME = f"timer_service-{__version__}"


class Built(NamedTuple):
    """What the two files hold."""

    package: set[str]
    """The files of the package in the repository."""
    sdist: set[str]
    wheel: set[str]
    metadata: Message


def build(kind: str, folder: Path, into: Path) -> Path:
    """Build a folder, and return the path of the file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(into)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (found,) = into.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist in a folder that has other files too, and the wheel from the sdist."""
    folder, into, unpacked = (tmp_path_factory.mktemp(name) for name in ("folder", "dist", "unpacked"))
    shutil.copytree(ROOT / "timer_service", folder / "timer_service", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "migrations", folder / "migrations")
    package = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    for name in TOP:
        shutil.copy(ROOT / name, folder)
    for name in STRAYS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a secret")
    with tarfile.open(build("sdist", folder, into)) as sdist:
        sdist.extractall(unpacked, filter="data")
        in_sdist = {each.name.removeprefix(f"{NAME}/") for each in sdist if each.isfile()}
    with ZipFile(build("wheel", unpacked / NAME, into)) as wheel:
        metadata = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
        return Built(package, in_sdist, set(wheel.namelist()), metadata)


@pytest.mark.slow
def test_files(built: Built) -> None:
    """Both hold each file of the package, and no file that lies beside these."""
    assert built.sdist == built.package | {*TOP, "PKG-INFO"}
    own = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    package = {name.replace("migrations/", "timer_service/migrations/") for name in built.package}
    assert built.wheel == package | {f"{NAME}.dist-info/{name}" for name in own}


@pytest.mark.slow
def test_links(built: Built) -> None:
    """Each link of the README in the package index is absolute, and names a file of this version in the repository."""
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
    text = built.metadata.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)#]+)", text)
    own = [link.removeprefix(f"{repository}/") for link in links if link.startswith(repository)]
    assert [link for link in links if not link.startswith("https://")] == []
    for link in own:
        kind, version, path = link.split("/", 2)
        assert (version, (ROOT / path).exists()) == (f"v{__version__}", True), link
        assert (kind == "raw") is path.endswith((".png", ".svg")), link
    assert own
