"""A checker of types finds the mistakes of users' programs."""

import re
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
async def test_mistakes_are_found(tmp_path: Path) -> None:
    """Mypy reports the lines of `programs.py` that end with the code of an error, and no others."""
    options = ("--strict", f"--cache-dir={tmp_path}", "--config-file=", "--no-error-summary", "--hide-error-context")
    mypy = await create_subprocess_exec(sys.executable, "-m", "mypy", *options, PROGRAMS, stdout=PIPE, cwd=ROOT)
    output, _ = await mypy.communicate()
    found = dict(re.findall(r"programs\.py:(\d+): error: .*\[([a-z-]+)\]", output.decode()))  # the last of each line
    lines = enumerate(PROGRAMS.read_text().splitlines(), start=1)
    expected = {str(number): code[1] for number, line in lines if (code := re.search(r"  # ([a-z-]+)$", line))}
    assert found == expected
    assert len(expected) > 10
