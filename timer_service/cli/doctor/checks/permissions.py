"""What the server permits the service's user."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from timer_service.cli.doctor.finding import Finding, Status


def needed_publishes(subjects: Iterable[str], streams: Iterable[str], command_stream: str, durable: str) -> list[str]:
    """Return what the service's user must be allowed to publish."""
    return [
        *subjects,
        *(f"$JS.API.STREAM.INFO.{name}" for name in streams),
        f"$JS.API.CONSUMER.INFO.{command_stream}.{durable}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{command_stream}.{durable}",
        f"$JS.API.CONSUMER.MSG.NEXT.{command_stream}.{durable}",
        f"$JS.ACK.{command_stream}.{durable}.>",
    ]


def check_permissions(
    permissions: Mapping[str, Any], publishes: Sequence[str], subscribes: Sequence[str]
) -> Iterator[Finding]:
    """Judge what the server permits this user."""
    lacking = {
        "publish": [each for each in publishes if not _permitted(each, permissions.get("publish"))],
        "subscribe": [each for each in subscribes if not _permitted(each, permissions.get("subscribe"))],
    }
    for verb, denied in lacking.items():
        if denied:
            remedy = f"Allow the service's user to {verb} them."
            yield Finding("permissions", Status.FAIL, f"may not {verb} {', '.join(denied)}", remedy)
    if not any(lacking.values()):
        yield Finding("permissions", Status.OK, "all that the service publishes and subscribes is permitted")


def _permitted(subject: str, rules: Mapping[str, Any] | None) -> bool:
    rules = rules or {}
    allow, deny = rules.get("allow"), rules.get("deny") or ()
    allowed = not allow or any(covers(each, subject) for each in allow)
    return allowed and not any(covers(each, subject) for each in deny)


def covers(pattern: str, subject: str) -> bool:
    """Tell whether a pattern holds for all that a subject, itself maybe one, stands for."""
    wanted, found = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(found) <= len(wanted):
            return False
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(
        each in {"*", part} and part != ">" for each, part in zip(wanted, found, strict=True)
    )
