import sys
from pathlib import Path

import pytest

from timer_service.core.ports.sql import load_sql


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two named statements."""
    folder = tmp_path / "somewhere"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "some.sql").write_text(
        "-- A heading.\n\n-- name: first\nSELECT 1\n-- why\nFROM a\n\n-- name: second_one\n\nDELETE FROM b\n", "utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somewhere", raising=False)
    return "somewhere"


def test_blocks(package: str) -> None:
    """A block is the text from its name to the next name, including comments."""
    assert load_sql(package, "some.sql") == {
        "first": "SELECT 1\n-- why\nFROM a",
        "second_one": "DELETE FROM b",
    }
