"""The pages of the documentation site that are made from the code."""

import runpy
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from timer_service.config import Config
from timer_service.metrics import Metrics

STAGE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "site" / "stage.py"))


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The staged site."""
    folder = tmp_path_factory.mktemp("site")
    STAGE["main"](folder)
    return folder


def test_reference(staged: Path) -> None:
    """Each setting and each metric has a row, and each command a section."""

    def page(name: str) -> list[str]:
        return (staged / "pages" / "docs" / "reference" / f"{name}.md").read_text("utf-8").splitlines()

    rows = [line.strip("| ").split(" | ") for line in page("settings") if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"`TIMER_{name.upper()}`" for name in Config.model_fields]
    assert ["`TIMER_BATCH_SIZE`", "`1000`"] in [row[:2] for row in rows]
    registry = CollectorRegistry()
    Metrics(registry)
    helps = [line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# HELP")]
    named = {line.split("`")[1] for line in page("metrics") if line.startswith("| `")}
    assert {name for name in helps if name.startswith("timer_") and not name.endswith("_created")} <= named
    titles = {line.strip("# `") for line in page("cli") if line.startswith("##")}
    assert {"timer-service serve", "timer-service timers schedule", "timer-service workflows start"} <= titles


def test_navigation(staged: Path) -> None:
    """Each page in the navigation exists."""
    lines = (staged / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].splitlines()
    pages = [name for line in lines if (name := line.rpartition(": ")[2]).endswith(".md")]
    assert len(pages) > 15
    assert [name for name in pages if not (staged / "pages" / name).is_file()] == []
