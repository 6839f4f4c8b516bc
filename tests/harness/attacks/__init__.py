"""The attacks of a tenant behind the fence of deploy/nats.conf, by name."""

from collections.abc import Mapping

from tests.harness.attacks.attack import Attack
from tests.harness.attacks.broker_use import BROKER_USE
from tests.harness.attacks.commands import COMMANDS as OTHER_COMMANDS
from tests.harness.attacks.costly import COSTLY
from tests.harness.attacks.fuzz import fuzz
from tests.harness.attacks.queries import QUERIES
from tests.harness.attacks.rejects import REJECTS
from tests.harness.attacks.requests import REQUESTS
from tests.harness.attacks.schedules import SCHEDULE_QUERIES, SCHEDULES
from tests.harness.attacks.workflows import WORKFLOW_QUERIES, WORKFLOWS

__all__ = ["ATTACKS", "COMMANDS", "COSTLY", "find"]
COMMANDS: Mapping[str, Attack] = {**OTHER_COMMANDS, **SCHEDULES, **WORKFLOWS}
"""Attacks with valid commands."""
ATTACKS: Mapping[str, Attack] = {
    **COMMANDS,
    **REJECTS,
    **QUERIES,
    **SCHEDULE_QUERIES,
    **WORKFLOW_QUERIES,
    **REQUESTS,
    **BROKER_USE,
}


def find(name: str) -> Attack:
    """Return the attack with a name. `fuzz 7` sends random messages with the seed 7."""
    return fuzz(int(name.removeprefix("fuzz "))) if name.startswith("fuzz ") else {**ATTACKS, **COSTLY}[name]
