"""The links and paths in the pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "tests").glob("*.md"),
    *(page for folder in ("docs", "contracts", "benchmarks", "deploy") for page in (ROOT / folder).rglob("*.md")),
]


def test_links_lead_to_files() -> None:
    """Every relative link of a page leads to a file or a folder."""
    found = [
        (str(page), link)
        for page in PAGES
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8"))
    ]
    assert len(found) > len(PAGES)
    assert [(page, link) for page, link in found if not (Path(page).parent / link).exists()] == []


def test_paths_of_tests_exist() -> None:
    """Every path of a test file that a page names exists."""
    found = [
        (str(page), path) for page in PAGES for path in re.findall(r"`(tests/[\w/]+\.py)", page.read_text("utf-8"))
    ]
    assert found
    assert [(page, path) for page, path in found if not (ROOT / path).exists()] == []
