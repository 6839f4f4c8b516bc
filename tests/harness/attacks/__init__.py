"""The attacks of a tenant behind the fence of deploy/nats.conf, by name."""

from collections.abc import Mapping

from tests.harness.attacks.attack import Attack
from tests.harness.attacks.broker_use import BROKER_USE
from tests.harness.attacks.commands import COMMANDS as OTHER_COMMANDS
from tests.harness.attacks.copies import COPIES, TRACES
from tests.harness.attacks.costly import COSTLY as OF_FEATURES
from tests.harness.attacks.fuzz import fuzz
from tests.harness.attacks.queries import QUERIES
from tests.harness.attacks.rejects import REJECTS
from tests.harness.attacks.requests import REQUESTS
from tests.harness.attacks.schedules import SCHEDULE_QUERIES, SCHEDULES
from tests.harness.attacks.workflows import WORKFLOW_QUERIES, WORKFLOWS

__all__ = ["ATTACKS", "COMMANDS", "COSTLY", "TRACES", "find"]
_MANY = 200
"""From so many messages on, a block is read faster than it is handled. The server then drops most of a flood."""


def _paced(attacks: Mapping[str, Attack]) -> Mapping[str, Attack]:
    """Let attacks with many small commands wait until these are handled, so that the service gets all of them."""
    return {name: attack._replace(paced=attack.size >= _MANY) for name, attack in attacks.items()}


COMMANDS: Mapping[str, Attack] = _paced({**OTHER_COMMANDS, **SCHEDULES, **WORKFLOWS})
"""Attacks with valid commands."""
_FLOODS: Mapping[str, Attack] = {
    "a flood of timers": OTHER_COMMANDS["timers"],
    "a flood of timers that are due": OTHER_COMMANDS["timers that are due"],
    "a flood of retries": OTHER_COMMANDS["retries"],
    "a flood of bodies that are no JSON": REJECTS["no JSON"],
}
"""Attacks with small commands, sent as fast as the server reads them."""
_ALL: Mapping[str, Attack] = {
    **COMMANDS,
    **_paced(REJECTS),
    **_FLOODS,
    **QUERIES,
    **SCHEDULE_QUERIES,
    **WORKFLOW_QUERIES,
    **REQUESTS,
    **BROKER_USE,
    **COPIES,
}
_UNREAD = ("replies that are not read", "small replies to many subscriptions")
"""Floods whose replies the server cannot deliver. Replies to others wait behind these."""
ATTACKS: Mapping[str, Attack] = {name: attack for name, attack in _ALL.items() if name not in _UNREAD}
COSTLY: Mapping[str, Attack] = {**OF_FEATURES, **{name: _ALL[name] for name in _UNREAD}}
"""Attacks that delay others by seconds."""


def find(name: str) -> Attack:
    """Return the attack with a name. `fuzz 7` sends random messages with the seed 7."""
    return fuzz(int(name.removeprefix("fuzz "))) if name.startswith("fuzz ") else {**ATTACKS, **COSTLY, **TRACES}[name]
