"""The migrations of a database."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from timer_service.adapters.migrations import Migration
from timer_service.cli.doctor.finding import Finding, Status

Applied: TypeAlias = Mapping[int, tuple[str, str]]
"""Number -> name and checksum."""


def check_schema(applied: Applied, migrations: Sequence[Migration], *, automatic: bool, setting: str) -> Finding:
    """Check the applied migrations. `setting` is the variable that names the database."""
    known = {migration.number: migration for migration in migrations}
    if newer := sorted(applied.keys() - known.keys()):
        text = f"has migration {applied[newer[0]][0]}, which this version does not know"
        return Finding("schema", Status.FAIL, text, "Upgrade timer-service.")
    if changed := [
        known[number].name for number, (_, checksum) in applied.items() if known[number].checksum != checksum
    ]:
        remedy = f"Another build created this database: use that build, or another {setting}."
        return Finding("schema", Status.FAIL, f"migration {changed[0]} was applied with another text", remedy)
    if pending := [migration.name for migration in migrations if migration.number not in applied]:
        status = Status.WARN if automatic else Status.FAIL
        remedy = "The service applies it when it starts." if automatic else "Run `timer-service migrate up`."
        return Finding("schema", status, f"lacks {', '.join(pending)}", remedy)
    return Finding("schema", Status.OK, f"at head ({migrations[-1].name})")
