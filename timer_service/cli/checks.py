"""What `timer-service doctor` makes of what it has seen. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from timer_service.adapters.migrations import Migration
from timer_service.core.message import Kind

_SAFE_SQLITE = (3, 51, 3)
_ATOMIC_SERVER = (2, 12)
_TOLERATED_SKEW = timedelta(seconds=1)
_SHORT_AGE = timedelta(days=1)
_SHORT_WINDOW = timedelta(minutes=2)
_NANOSECONDS = 1000
_MEND = "Start the service once with TIMER_MANAGE_STREAMS=true, or have the stream's owner change it."


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, what was seen, and what to do about it."""

    check: str
    status: Status
    message: str
    remedy: str | None = None


def check_server(version: tuple[int, int, int], url: str) -> Finding:
    """Judge a server that answers."""
    text = f"nats-server {'.'.join(map(str, version))} at {url}"
    if version[:2] < _ATOMIC_SERVER:
        return Finding("broker", Status.WARN, f"{text} has no atomic batches", "Run nats-server 2.12 or newer.")
    return Finding("broker", Status.OK, text)


def check_skew(skew: timedelta, uncertainty: timedelta) -> Finding:
    """Judge by how much this machine's clock is ahead of the broker's."""
    text = (
        f"this clock is {abs(skew).total_seconds():.3f} s {'ahead of' if skew > timedelta() else 'behind'} the broker's"
    )
    if abs(skew) - uncertainty > _TOLERATED_SKEW:
        remedy = "Synchronize both machines (NTP). The service's clock decides when timers fire."
        return Finding("clock", Status.WARN, text, remedy)
    return Finding("clock", Status.OK, f"{text} (± {uncertainty.total_seconds():.3f} s)")


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


def needed_publishes(subjects: Iterable[str], streams: Iterable[str], command_stream: str, durable: str) -> list[str]:
    """Return what the service's user must be allowed to publish."""
    return [
        *subjects,
        *(f"$JS.API.STREAM.INFO.{name}" for name in streams),
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


def check_sqlite(version: tuple[int, ...]) -> Finding:
    """Judge the SQLite library."""
    text = f"SQLite {'.'.join(map(str, version))}"
    if version < _SAFE_SQLITE:
        return Finding(
            "sqlite",
            Status.WARN,
            f"{text} can corrupt a WAL database that several connections write to",
            "The service writes through one connection, and its lock file keeps other instances out: let nothing else "
            "write to the file, or use a Python with SQLite 3.51.3 or newer.",
        )
    return Finding("sqlite", Status.OK, text)


def check_schema(
    applied: Mapping[int, tuple[str, str]], migrations: Sequence[Migration], *, automatic: bool
) -> Finding:
    """Judge the migrations a database has, by number: name and checksum."""
    known = {each.number: each for each in migrations}
    if newer := sorted(applied.keys() - known.keys()):
        return Finding(
            "schema", Status.FAIL, f"has {applied[newer[0]][0]}, which this version does not know", "Upgrade."
        )
    if changed := [
        known[number].name for number, (_, checksum) in applied.items() if known[number].checksum != checksum
    ]:
        remedy = "The file belongs to another build: use that, or another TIMER_DB_PATH."
        return Finding("schema", Status.FAIL, f"{changed[0]} was applied with another text", remedy)
    if pending := [each.name for each in migrations if each.number not in applied]:
        status = Status.WARN if automatic else Status.FAIL
        remedy = "The service applies it when it starts." if automatic else "Run `timer-service migrate up`."
        return Finding("schema", status, f"lacks {', '.join(pending)}", remedy)
    return Finding("schema", Status.OK, f"at head ({migrations[-1].name})")
