"""Looks up known vulnerabilities of every locked dependency with pip-audit.

Exit codes: 0 all were checked and none is known, 1 some are known, 2 not all could be checked.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
FILES = ("dev.txt", "run-nats.txt", "run-rabbitmq.txt", "run-redis.txt", "serve.txt", "tools.txt")
_OPTIONS = ("--disable-pip", "--require-hashes", "--progress-spinner=off", "--format=json")


class Report(NamedTuple):
    """The result of an audit."""

    checked: int
    vulnerable: list[str]
    unchecked: list[str]
    """Why a dependency, or all of them, could not be checked."""

    @property
    def exit_code(self) -> int:
        """A known vulnerability matters more than what could not be checked."""
        if self.vulnerable:
            return 1
        return 2 if self.unchecked else 0


def read_report(output: str, errors: str) -> Report:
    """Return the report of pip-audit. It ends with 0 even if it could look up no dependency at all."""
    try:
        dependencies = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        *_, reason = errors.strip().splitlines() or ["no output"]
        return Report(0, [], [f"pip-audit failed: {reason}"])
    unchecked = [each["skip_reason"] for each in dependencies if "skip_reason" in each]
    vulnerable = [line for each in dependencies for line in _vulnerabilities(each)]
    return Report(len(dependencies) - len(unchecked), vulnerable, unchecked)


def _vulnerabilities(dependency: Mapping[str, Any]) -> Iterator[str]:
    for each in dependency.get("vulns", ()):
        fixed = ", ".join(each["fix_versions"]) or "no version"
        yield f"{dependency['name']} {dependency['version']}: {each['id']}, fixed in {fixed}"


def describe(report: Report) -> str:
    """Return the report for people."""
    lines = [*report.vulnerable, *report.unchecked[:3]]
    if len(report.unchecked) > 3:  # noqa: PLR2004
        lines.append(f"... and {len(report.unchecked) - 3} more")
    lines.append(f"{report.checked} dependencies checked, {len(report.vulnerable)} vulnerabilities known")
    if report.unchecked:
        lines.append("NOT CHECKED: nothing is known about the other dependencies. Run this again with a network.")
    return "\n".join(lines)


def audit(file: Path, *options: str) -> Report:
    """Return the report of one lock file: pip-audit refuses files that have different versions of a dependency."""
    command = [sys.executable, "-m", "pip_audit", *_OPTIONS, "--requirement", str(file), *options]
    done = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603
    return read_report(done.stdout, done.stderr)


def together(reports: Sequence[Report]) -> Report:
    """Return the reports of several files as one. A dependency counts in each of its files, but its faults once."""
    return Report(
        sum(each.checked for each in reports),
        list(dict.fromkeys(line for each in reports for line in each.vulnerable)),
        list(dict.fromkeys(reason for each in reports for reason in each.unchecked)),
    )


def main(*options: str) -> int:
    """Audit the lock files, print the report and return the exit code."""
    report = together([audit(FOLDER / name, *options) for name in FILES])
    print(describe(report))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
