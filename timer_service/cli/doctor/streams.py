"""The configuration of the streams."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from timer_service.adapters.nats.streams import has_tenant_streams, settings_that_lose
from timer_service.adapters.nats.subjects import covers
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.core.values.address import Kind

_SHORT_AGE = timedelta(days=1)
_SHORT_WINDOW = timedelta(minutes=2)
_NEARLY_FULL = 0.8
_QUIET_NANOSECONDS = 10_000_000_000
_NANOSECONDS = 1000
_SEPARATE = "Give each tenant a stream of its own"
_UPDATE = "Start the service once with TIMER_MANAGE_STREAMS=true, or ask the owner of the stream to change it."


def check_stream(
    kind: Kind, subject: str, info: Mapping[str, Any], *, managed: bool, shared: bool
) -> Iterator[Finding]:
    """Check a stream, as JetStream describes it. `shared`: the server asks for logins, so tenants may share it.

    `managed`: a service changes the settings that it needs when it starts. Otherwise it does not start.
    """
    config = info["config"]
    refused = Status.WARN if managed else Status.FAIL
    problems = [
        *_problems(kind, subject, config, refused, clustered=bool(info.get("cluster", {}).get("name"))),
        *_losses(config, info["state"], refused),
        *_sources(config, info.get("sources") or ()),
        *(_shared(kind, config) if shared else ()),
    ]
    name = f"stream {config['name']}"
    for status, message, remedy in problems:
        yield Finding(name, status, message, remedy)
    if not problems:
        state = info["state"]
        yield Finding(name, Status.OK, f"{state['messages']} messages, {state['bytes']} bytes, {_limits(config)}")


def check_missing_stream(name: str, *, managed: bool) -> Finding:
    """Report a stream that does not exist. `name`: the name of the check."""
    if managed:
        return Finding(name, Status.WARN, "does not exist", "The service creates it when it starts.")
    remedy = "Create it (contracts/README.md has its settings), or set TIMER_MANAGE_STREAMS=true."
    return Finding(name, Status.FAIL, "does not exist, and TIMER_MANAGE_STREAMS is off", remedy)


def _problems(
    kind: Kind, subject: str, config: Mapping[str, Any], refused: Status, *, clustered: bool
) -> Iterator[tuple[Status, str, str]]:
    """Yield the settings of a stream with which it does not work, or not as well as it could.

    `refused`: the status of settings with which a service does not start.
    """
    if not any(covers(each, subject) for each in config.get("subjects", ())) and not has_tenant_streams(config):
        yield Status.FAIL, f"does not take {subject}", _UPDATE
    if config["discard"] != "new":
        yield refused, "drops its oldest messages at a limit (discard: old) instead of refusing new ones", _UPDATE
    if kind is Kind.EVENT and not config.get("allow_atomic"):
        remedy = _UPDATE if config.get("persist_mode") != "async" else "Create the stream again without persist_mode."
        yield Status.WARN, "does not take atomic batches (allow_atomic): publishing is slower", remedy
    if timedelta() < (age := _duration(config["max_age"])) < _SHORT_AGE:
        remedy = "Messages that were not read by then are lost: make max_age longer than any outage may last."
        yield Status.WARN, f"deletes messages after {age} (max_age)", remedy
    if config["max_msgs"] > 0:
        remedy = "Set max_bytes instead, which keeps room for the other streams."
        yield Status.WARN, f"refuses messages at max_msgs = {config['max_msgs']}", remedy
    # The streams of tenants recognize repeats themselves, and a repeated dead letter does no harm.
    has_repeats = kind is Kind.EVENT or (kind is Kind.COMMAND and not has_tenant_streams(config))
    if has_repeats and (window := _duration(config["duplicate_window"])) < _SHORT_WINDOW:
        text = f"recognizes repeats for {window} only (duplicate_window)"
        yield Status.WARN, text, "Set duplicate_window to 2m or more."
    if clustered and config["num_replicas"] == 1:
        text = "has 1 replica in a cluster: it is unavailable while that server is down"
        yield Status.WARN, text, "Set replicas to 3."


def _losses(config: Mapping[str, Any], state: Mapping[str, Any], refused: Status) -> Iterator[tuple[Status, str, str]]:
    """Yield the settings with which a stream loses messages, or soon refuses them."""
    if config.get("storage") == "memory":
        remedy = "Create the stream again with file storage when all its messages were read."
        yield Status.WARN, "loses its messages when the server ends (storage: memory)", remedy
    for field, needed in settings_that_lose(config).items():
        text = f"loses or refuses messages with {field} = {json.dumps(config[field])}: it needs {json.dumps(needed)}"
        yield refused, text, _UPDATE
    limit: int = config["max_bytes"]
    if 0 < limit * _NEARLY_FULL < state["bytes"]:
        text = f"is nearly full: it has {state['bytes']} of max_bytes = {limit}, and refuses messages when it is full"
        yield Status.WARN, text, "Raise the limit, or delete messages that nobody needs."


def _sources(config: Mapping[str, Any], sources: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Status, str, str]]:
    """Yield the streams of tenants whose commands do not arrive, or wait. An idle one gives a sign every second."""
    for source in sources if has_tenant_streams(config) else ():
        name, waiting, quiet_for = source["name"], source.get("lag", 0), source.get("active", -1)
        if not 0 <= quiet_for < _QUIET_NANOSECONDS:  # -1: it has never given a sign
            reason = source.get("error", {}).get("description", "it does not answer")
            text = f"takes no commands from {name}: {reason}"
            yield Status.WARN, text, "`timer-service tenants separate TENANT` as the operator creates what is missing."
        elif waiting:
            remedy = f"If the number does not fall, see docs/security.md ({_SEPARATE})."
            yield Status.NOTE, f"has not taken {waiting} commands of {name} yet", remedy


def _shared(kind: Kind, config: Mapping[str, Any]) -> Iterator[tuple[Status, str, str]]:
    """Yield what one tenant could use against the others."""
    if config["max_bytes"] <= 0:
        remedy = f"nats stream edit {config['name']} --max-bytes=20GB (docs/security.md, Limit the streams)"
        yield Status.NOTE, "has no max_bytes: one tenant can fill the disk, and then all streams are full", remedy
    if kind is Kind.COMMAND and not has_tenant_streams(config):
        remedy = f"`timer-service tenants separate TENANT...` as the operator (docs/security.md, {_SEPARATE})"
        yield Status.NOTE, "is shared by all tenants: a flood of commands of one delays the others for seconds", remedy


def _limits(config: Mapping[str, Any]) -> str:
    age = _duration(config["max_age"])
    return f"{f'max_age {age.days} d' if age else 'no max_age'}, max_bytes {config['max_bytes']}"


def _duration(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=nanoseconds / _NANOSECONDS)
