"""The attack that hurts other tenants for seconds: what docs/security.md says of it is true, and not worse."""

from collections.abc import Mapping
from itertools import chain

from tests.harness.attacks.attack import Attack
from tests.harness.attacks.commands import COMMANDS
from tests.harness.attacks.queries import QUERIES
from tests.harness.attacks.requests import REQUESTS
from tests.harness.attacks.schedules import SCHEDULES


def _together(*attacks: Attack) -> Attack:
    """Return the attack that sends a block of each attack in turn."""
    return Attack(
        lambda number: attacks[number % len(attacks)].block(number),
        max(each.size for each in attacks),
        connections=len(attacks),
        prepare=list(chain.from_iterable(each.prepare for each in attacks)),
    )


COSTLY: Mapping[str, Attack] = {
    "several costly attacks at once": _together(
        COMMANDS["due timers with much data"],
        COMMANDS["runs of 10,000 jobs"],
        SCHEDULES["schedules that start workflows"],
        QUERIES["pages of large runs"],
        QUERIES["small queries"],
        REQUESTS["long reports"],
    ),
}
