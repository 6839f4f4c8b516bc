"""The attacks of a tenant behind the fence of deploy/nats.conf, by name."""

from collections.abc import Mapping

from tests.harness.attacks.attack import Attack
from tests.harness.attacks.broker_use import BROKER_USE
from tests.harness.attacks.commands import COMMANDS
from tests.harness.attacks.fuzz import fuzz
from tests.harness.attacks.queries import QUERIES
from tests.harness.attacks.rejects import REJECTS
from tests.harness.attacks.requests import REQUESTS

__all__ = ["ATTACKS", "COMMANDS", "find"]
ATTACKS: Mapping[str, Attack] = {**COMMANDS, **REJECTS, **QUERIES, **REQUESTS, **BROKER_USE}


def find(name: str) -> Attack:
    """Return the attack with a name. `fuzz 7` sends random messages with the seed 7."""
    return fuzz(int(name.removeprefix("fuzz "))) if name.startswith("fuzz ") else ATTACKS[name]
