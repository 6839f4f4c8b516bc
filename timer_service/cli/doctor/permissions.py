"""The permissions of the service's user at the broker."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from timer_service.adapters.nats.subjects import covers
from timer_service.cli.doctor.finding import Finding, Status


def needed_publishes(subjects: Iterable[str], streams: Iterable[str], command_stream: str, consumer: str) -> list[str]:
    """Return the subjects that the service publishes to."""
    return [
        *subjects,
        *(f"$JS.API.STREAM.INFO.{name}" for name in streams),
        f"$JS.API.STREAM.MSG.GET.{command_stream}",
        f"$JS.API.CONSUMER.INFO.{command_stream}.{consumer}",
        f"$JS.API.CONSUMER.DELETE.{command_stream}.{consumer}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{command_stream}.{consumer}",
        f"$JS.API.CONSUMER.MSG.NEXT.{command_stream}.{consumer}",
    ]


def check_permissions(
    permissions: Mapping[str, Any], publishes: Sequence[str], subscribes: Sequence[str]
) -> Iterator[Finding]:
    """Check that the user may publish and subscribe to these subjects."""
    denied = {
        "publish": [subject for subject in publishes if not _is_permitted(subject, permissions.get("publish"))],
        "subscribe": [subject for subject in subscribes if not _is_permitted(subject, permissions.get("subscribe"))],
    }
    for verb, subjects in denied.items():
        if subjects:
            remedy = f"Allow the user of the service to {verb} to these subjects."
            yield Finding("permissions", Status.FAIL, f"may not {verb} {', '.join(subjects)}", remedy)
    if not any(denied.values()):
        yield Finding("permissions", Status.OK, "the user may publish and subscribe to all subjects of the service")


def _is_permitted(subject: str, rules: Mapping[str, Any] | None) -> bool:
    rules = rules or {}
    allow, deny = rules.get("allow"), rules.get("deny") or ()
    allowed = not allow or any(covers(pattern, subject) for pattern in allow)
    return allowed and not any(covers(pattern, subject) for pattern in deny)
