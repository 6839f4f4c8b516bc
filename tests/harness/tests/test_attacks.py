"""The attacks do what their names say."""

import re

import pytest

from tests.harness.attacks import find


@pytest.mark.parametrize(
    ("kind", "commands"),
    [("runs and their cancels", 2), ("reports that drop 9,999 jobs", 2), ("workflows and their cancels", 3)],
)
def test_commands_name_what_the_one_before_them_has_made(kind: str, commands: int) -> None:
    """The commands of a turn have the same number, and those of the next turn another."""
    attack = find(kind)
    block = attack.block(0) + attack.block(1)
    ids = re.findall(rb'"(?:runId|workflowId)": "([^"]+)"', block)
    assert len(set(ids[:commands])) == 1
    assert ids[0] != ids[commands]
