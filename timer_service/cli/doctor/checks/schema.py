"""Which migrations a database has."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from timer_service.adapters.migrations import Migration
from timer_service.cli.doctor.finding import Finding, Status

Applied: TypeAlias = Mapping[int, tuple[str, str]]
"""Number -> name and checksum."""


def check_schema(applied: Applied, migrations: Sequence[Migration], *, automatic: bool, setting: str) -> Finding:
    """Judge the migrations a database has; `setting` names the database."""
    known = {each.number: each for each in migrations}
    if newer := sorted(applied.keys() - known.keys()):
        return Finding(
            "schema", Status.FAIL, f"has {applied[newer[0]][0]}, which this version does not know", "Upgrade."
        )
    if changed := [
        known[number].name for number, (_, checksum) in applied.items() if known[number].checksum != checksum
    ]:
        remedy = f"The database belongs to another build: use that, or another {setting}."
        return Finding("schema", Status.FAIL, f"{changed[0]} was applied with another text", remedy)
    if pending := [each.name for each in migrations if each.number not in applied]:
        status = Status.WARN if automatic else Status.FAIL
        remedy = "The service applies it when it starts." if automatic else "Run `timer-service migrate up`."
        return Finding("schema", status, f"lacks {', '.join(pending)}", remedy)
    return Finding("schema", Status.OK, f"at head ({migrations[-1].name})")
