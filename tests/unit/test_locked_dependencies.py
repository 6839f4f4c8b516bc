"""The lock files of the dependencies, and the report of their audit."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.audit import FILES

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("linux", "darwin")
EXTRAS = {
    "run-nats.txt": ("server", "embedded"),
    "run-rabbitmq.txt": ("server", "rabbitmq", "ui"),
    "run-redis.txt": ("server", "embedded-redis", "redis", "ui"),
    "serve.txt": ("server", "nkeys", "postgres", "rabbitmq", "redis", "ui"),
    "dev.txt": ("server", "embedded", "embedded-redis", "nkeys", "postgres", "rabbitmq", "redis", "speed"),
}


def locked(file: str) -> dict[str, tuple[Requirement, int]]:
    """Return the requirements of a lock file by name, each with the number of its hashes."""
    text = (ROOT / "requirements" / file).read_text("utf-8").replace("\\\n", " ")
    found: dict[str, tuple[Requirement, int]] = {}
    for line in text.splitlines():
        wanted, *hashes = line.split(" --hash=")
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64} *", each) for each in hashes), line
        requirement = Requirement(wanted.strip())
        found[canonicalize_name(requirement.name)] = requirement, len(hashes)
    return found


@pytest.mark.parametrize("file", FILES)
def test_every_line_is_pinned(file: str) -> None:
    """Each line of a lock file is one version with hashes. No line names a registry or a URL."""
    for requirement, hashes in locked(file).values():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert (hashes > 0, requirement.url) == (True, None), requirement


@pytest.mark.parametrize("file", [name for name in EXTRAS if name != "dev.txt"])
def test_same_versions(file: str) -> None:
    """The tests run with the versions that users install."""
    tested = locked("dev.txt")
    for name, (requirement, _) in locked(file).items():
        assert requirement.specifier == tested[name][0].specifier


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("file", EXTRAS)
def test_every_dependency_is_locked(file: str, platform: str, python: str) -> None:
    """On every Python and platform, each dependency, also of a dependency, is locked in a version that fits.

    The dependencies of dependencies are those of the installed versions.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": platform}
    known = locked(file)
    waiting = list(project_requirements(EXTRAS[file], ("build", "dev") if file == "dev.txt" else ("build",)))
    seen = set[str]()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        assert name in known, f"{wanted} is not in {file}: run `make lock`"
        requirement, _ = known[name]
        (version,) = (each.version for each in requirement.specifier)
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted} does not fit {version}: run `make lock`"
        assert requirement.marker is None or requirement.marker.evaluate(environment), requirement
        for extra in ("", *wanted.extras):
            if f"{name}[{extra}]" not in seen:
                seen.add(f"{name}[{extra}]")
                waiting += dependencies_of(name, extra, environment)
    assert len(seen) > len(PROJECT["project"]["dependencies"])


def project_requirements(extras: tuple[str, ...], groups: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield the requirements of the project with some extras, of some groups, and of the build."""
    project = PROJECT["project"]
    texts = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    texts += [text for extra in extras for text in project["optional-dependencies"][extra]]
    texts += [text for group in groups for text in PROJECT["dependency-groups"][group]]
    yield from (each for each in map(Requirement, texts) if each.name != project["name"])


def dependencies_of(name: str, extra: str, environment: dict[str, str]) -> Iterator[Requirement]:
    """Yield the requirements of an installed package; none if it is not installed here."""
    try:
        texts = requires(name) or []
    except PackageNotFoundError:
        return
    for each in map(Requirement, texts):
        if each.marker is None or each.marker.evaluate({**environment, "extra": extra}):
            yield each
