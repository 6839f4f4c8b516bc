"""How the streams are set up."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from timer_service.cli.doctor.finding import Finding, Status
from timer_service.core.message import Kind

_SHORT_AGE = timedelta(days=1)
_SHORT_WINDOW = timedelta(minutes=2)
_NANOSECONDS = 1000
_MEND = "Start the service once with TIMER_MANAGE_STREAMS=true, or have the stream's owner change it."


def check_stream(kind: Kind, subject: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge a stream that is there, by the answer of JetStream."""
    config = info["config"]
    troubles = list(_troubles(kind, subject, config, clustered=bool(info.get("cluster", {}).get("name"))))
    name = f"stream {config['name']}"
    for status, message, remedy in troubles:
        yield Finding(name, status, message, remedy)
    if not troubles:
        state = info["state"]
        yield Finding(name, Status.OK, f"{state['messages']} messages, {state['bytes']} bytes, {_limits(config)}")


def _troubles(
    kind: Kind, subject: str, config: Mapping[str, Any], *, clustered: bool
) -> Iterator[tuple[Status, str, str]]:
    if subject not in config.get("subjects", ()):
        yield Status.FAIL, f"does not take {subject}", _MEND
    if config["discard"] != "new":
        yield Status.WARN, "drops its oldest messages at a limit (discard: old) instead of refusing new ones", _MEND
    if kind is not Kind.DEAD_LETTER and not config.get("allow_atomic"):
        yield Status.WARN, "takes no atomic batches (allow_atomic): publishing is slower", _MEND
    if timedelta() < (age := _duration(config["max_age"])) < _SHORT_AGE:
        lost = "Messages that nobody has read by then are lost; make max_age longer than any stop may last."
        yield Status.WARN, f"forgets messages after {age} (max_age)", lost
    for limit in ("max_bytes", "max_msgs"):
        if config[limit] > 0:
            yield (
                Status.WARN,
                f"refuses messages at {limit} = {config[limit]}",
                "Watch how full it is, or lift the limit.",
            )
    if kind is not Kind.DEAD_LETTER and (window := _duration(config["duplicate_window"])) < _SHORT_WINDOW:
        yield (
            Status.WARN,
            f"recognizes repeats for {window} only (duplicate_window)",
            "Set duplicate_window to 2m or more.",
        )
    if clustered and config["num_replicas"] == 1:
        yield Status.WARN, "has 1 replica in a cluster: it is away when that server is", "Set replicas to 3."


def _limits(config: Mapping[str, Any]) -> str:
    age = _duration(config["max_age"])
    return f"max_age {age.days} d" if age else "no max_age"


def _duration(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=nanoseconds / _NANOSECONDS)


def check_missing_stream(name: str, *, managed: bool) -> Finding:
    """Judge a stream that is not there."""
    if managed:
        return Finding(f"stream {name}", Status.WARN, "is missing", "The service makes it when it starts.")
    remedy = "Make it (contracts/README.md has its settings), or set TIMER_MANAGE_STREAMS=true."
    return Finding(f"stream {name}", Status.FAIL, "is missing, and TIMER_MANAGE_STREAMS is off", remedy)
