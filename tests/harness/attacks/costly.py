"""The attacks that hurt other tenants for seconds: what docs/security.md says of them is true, and not worse."""

from collections.abc import Mapping
from itertools import chain

from tests.harness.attacks.attack import Attack, commands
from tests.harness.attacks.commands import COMMANDS, FAN, LARGE, STAR, gated, in_blocks, report, run
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
    "a large output for 250 jobs": commands(
        run("run-NUMBER", FAN[:251]), report("run-NUMBER", "first", outputs={"log": LARGE}), size=2
    ),
    "payloads of 500 jobs": in_blocks(
        run("run-NUMBER", [{"name": "first"}], groups=[f"g{n}" for n in range(32)]),
        *(("ResolveGroup", {"runId": "run-NUMBER", "groupName": f"g{n}", "jobs": gated(n)}) for n in range(32)),
        report("run-NUMBER", "first"),
    ),
    "a small output for 9,999 jobs": commands(
        run("run-NUMBER", STAR), report("run-NUMBER", "job-0", outputs={"log": 1}), size=2
    ),
    "runs that are stale at once": commands(
        run("run-NUMBER", [{"name": "job-0", "staleAfterSeconds": 1}, *STAR[1:]]), size=2
    ),
    "several costly attacks at once": _together(
        COMMANDS["due timers with much data"],
        COMMANDS["runs of 10,000 jobs"],
        SCHEDULES["schedules that start workflows"],
        QUERIES["pages of large runs"],
        QUERIES["small queries"],
        REQUESTS["long reports"],
    ),
}
