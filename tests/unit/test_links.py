"""The links and paths in the pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "contracts", "benchmarks") for page in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    """Every relative link of a page leads to a file or a folder."""
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_tests_exist(page: Path) -> None:
    """Every path of a test file that a page names exists."""
    paths = re.findall(r"`(tests/[\w/]+\.py)", page.read_text("utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []
