"""The streams of the service: created, updated or only checked, at the start and while the service runs.

Streams are described as the server does, in JSON. So an update changes nothing that belongs to the operator: the types
of the driver lack settings of a newer server, and shorten the times of sources.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.faults import Answer, Fault
from timer_service.adapters.nats.subjects import Subjects, covers
from timer_service.core.due.loop import Pass
from timer_service.core.ports.health import HEALTHY, Health, OutageLog, RecentFailure, worst
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind
from timer_service.core.values.errors import StartError

log = logging.getLogger(__name__)

_MAX_AGE = {
    Kind.COMMAND: timedelta(days=7),
    Kind.EVENT: timedelta(days=7),
    Kind.DEAD_LETTER: timedelta(days=30),
}
STORED_KINDS = tuple(_MAX_AGE)
"""The kinds of messages that streams store."""
TENANT_CONSUMER = "commands-"
"""How the name of a consumer begins by which the stream of commands reads a tenant's stream."""
_DUPLICATE_WINDOW = timedelta(minutes=2)
_WRITE_SECONDS = 5
_AGAIN_MS = 1000
_FULL = 0.99
"""The share of a limit from which a stream counts as full. The next messages may still fit, the next batch may not."""
_REFUSED_SECONDS = 65
"""How long a refusal counts. Messages that wait for room are published again within a minute."""

_KEEPS_ALL = {
    "no_ack": False,  # without acknowledgements nobody knows what is stored
    "max_msgs_per_subject": -1,  # a new message would delete older ones that nobody has read
    "subject_transform": None,  # messages would be stored under subjects that nobody reads
    "allow_rollup_hdrs": False,  # a header would delete the messages of all tenants
    "discard_new_per_subject": False,  # one tenant's events or commands would be refused for ever
}
"""Settings with which a stream keeps every message."""

StreamInfo = Mapping[str, Any]
"""What JetStream says about a stream: `config`, `state`, `created` and more."""


async def prepare_stream(client: Client, subjects: Subjects, kind: Kind, *, manage: bool) -> StreamInfo:
    """Create or update one stream, or only check it if not `manage`. Raises `StartError` if it is wrong."""
    name = subjects.stream(kind)
    try:
        try:
            info = await request(client, f"STREAM.INFO.{name}")
        except NotFoundError:
            if not manage:
                raise StartError(f"stream {name} is missing: create it, or set TIMER_MANAGE_STREAMS=true") from None
            return await request(client, f"STREAM.CREATE.{name}", wanted_stream(subjects, kind), seconds=_WRITE_SECONDS)
        changes = _needed_changes(info["config"], subjects, kind)
        if changes and manage:
            log.warning("changing the settings of a stream", extra={"stream": name, "settings": changes})
            changed = {**info["config"], **changes}
            return await request(client, f"STREAM.UPDATE.{name}", changed, seconds=_WRITE_SECONDS)
    except APIError as error:
        raise StartError(f"stream {name} cannot be set up: {error.description}") from error
    changes.pop("allow_atomic", None)  # without it publishing works, but is slower
    if changes:
        needed = ", ".join(f"{field} = {json.dumps(value)}" for field, value in changes.items())
        raise StartError(f"stream {name} needs {needed}: change the stream, or set TIMER_MANAGE_STREAMS=true")
    return info


def wanted_stream(subjects: Subjects, kind: Kind) -> dict[str, Any]:
    """Return the settings with which a stream is created."""
    return {
        "name": subjects.stream(kind),
        "subjects": [subjects.pattern(kind)],
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "discard": "new",  # a full stream refuses messages; `old` would delete stored ones
        "max_age": _nanoseconds(_MAX_AGE[kind]),
        "duplicate_window": _nanoseconds(_DUPLICATE_WINDOW),
        # Not for commands: an open batch takes one of the 50 places of the stream for 10 s, and any space on the disk.
        # One tenant could take all of that.
        "allow_atomic": kind is not Kind.COMMAND,
    }


def has_tenant_streams(commands: Mapping[str, Any]) -> bool:
    """Return whether the stream of commands takes them from streams of the tenants. `commands`: its settings."""
    consumers = (source.get("consumer") or {} for source in commands.get("sources") or ())
    return any(consumer.get("name", "").startswith(TENANT_CONSUMER) for consumer in consumers)


def _needed_changes(found: Mapping[str, Any], subjects: Subjects, kind: Kind) -> dict[str, Any]:
    """Return what an existing stream must change: new values by the names of the settings.

    The operator owns its limits, replicas and ages. A stream with streams of the tenants gets no subjects of its own.
    """
    wanted = wanted_stream(subjects, kind)
    changes: dict[str, Any] = {}
    taken, (pattern,) = found.get("subjects") or (), wanted["subjects"]
    if not any(covers(each, pattern) for each in taken) and not has_tenant_streams(found):
        # The server refuses subjects that overlap.
        changes["subjects"] = sorted([pattern, *(each for each in taken if not covers(pattern, each))])
    if found["discard"] != wanted["discard"]:
        changes["discard"] = wanted["discard"]
    changes |= settings_that_lose(found)
    # The server refuses atomic batches together with asynchronous writes.
    if wanted["allow_atomic"] and not found.get("allow_atomic") and found.get("persist_mode") != "async":
        changes["allow_atomic"] = True
    return changes


def settings_that_lose(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stream with which messages are lost or refused, and the values that they need."""
    needed = {name: value for name, value in _KEEPS_ALL.items() if (found.get(name) or value) != value}
    if 0 < found.get("max_msg_size", -1) < MAX_MESSAGE_BYTES:
        needed["max_msg_size"] = -1  # the stream would refuse valid messages
    return needed


def _nanoseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000


class StreamUpkeep:
    """A worker that checks the streams again, as at the start: it creates and updates them, or only reports them.

    A missing stream is created empty. The messages that it had are lost.
    """

    def __init__(
        self,
        client: Client,
        subjects: Subjects,
        found: Mapping[Kind, StreamInfo],
        *,
        manage: bool,
    ) -> None:
        """`found`: the streams at the start."""
        self._client = client
        self._subjects = subjects
        self._manage = manage
        self._found = dict(found)
        self.atomic = {kind for kind, info in found.items() if info["config"].get("allow_atomic")}
        """The kinds whose streams took atomic batches at the start."""
        self._outages = {
            kind: OutageLog(part=f"stream {subjects.stream(kind)}", quiet_seconds=0) for kind in STORED_KINDS
        }
        self._checked: dict[Kind, Health] = {kind: check_room(info) for kind, info in found.items()}
        self._refusals = {kind: RecentFailure(_REFUSED_SECONDS) for kind in STORED_KINDS}

    def name(self, kind: Kind) -> str:
        """Return the name of the stream that stores a kind."""
        return self._subjects.stream(kind)

    @property
    def health(self) -> Mapping[Kind, Health]:
        """The health of each stream at the last check, or since then if the broker had no room.

        Commands need the same storage as the events and dead letters for which the broker had no room. Without a
        connection, nothing is known about the streams.
        """
        room = worst(*(failure.health for failure in self._refusals.values()))
        return {**self._checked, Kind.COMMAND: worst(self._checked[Kind.COMMAND], room)}

    @property
    def keeps_events_for(self) -> timedelta | None:
        """How long the stream of events keeps them, at the last look; None: for ever."""
        age: int = self._found[Kind.EVENT]["config"]["max_age"]
        return timedelta(microseconds=age // 1000) if age > 0 else None

    def record(self, kind: Kind, answers: Collection[Answer]) -> None:
        """Record whether the broker had room for messages of one kind."""
        refused = next((answer for answer in answers if answer.fault is Fault.NO_STORAGE), None)
        if refused is not None:
            name = "dead letters" if kind is Kind.DEAD_LETTER else "events"
            reason = f"the broker has no room for {name}, and commands need the same storage: {refused.reason}"
            self._refusals[kind].record(reason)
        elif any(answer.fault is None for answer in answers):
            self._refusals[kind].clear()

    async def tick(self, now: int) -> Pass:
        """Check every stream once, if the broker is connected. Check again soon while one has a problem."""
        if self._client.is_connected:
            checked = await asyncio.gather(*map(self._check, STORED_KINDS))
            if self._client.is_connected:  # otherwise a check without an answer shows nothing about the stream
                self._checked = dict(zip(STORED_KINDS, checked, strict=True))
                self._log()
        well = all(health.reason is None for health in self.health.values())
        return Pass(0, None if well else now + _AGAIN_MS)

    async def _check(self, kind: Kind) -> Health:
        """Prepare one stream as at the start, and return its health."""
        name = self._subjects.stream(kind)
        try:
            info = await prepare_stream(self._client, self._subjects, kind, manage=self._manage)
        except StartError as error:
            return Health.down(str(error))
        except (nats.errors.Error, JetStreamError, OSError) as error:
            return Health.down(f"JetStream does not answer about stream {name}: {str(error) or type(error).__name__}")
        is_new = kind not in self._found or info["created"] != self._found[kind]["created"]
        self._found[kind] = info
        if is_new:
            log.warning(
                "a stream was created again; messages that only the old one had are lost", extra={"stream": name}
            )
        return check_room(info)

    def _log(self) -> None:
        """Log the streams that have a problem since the last check, and those that have none any more."""
        for kind, health in self.health.items():
            if health.reason is None:
                self._outages[kind].record_success()
            else:
                self._outages[kind].record_failure(health.reason)


def check_room(info: StreamInfo) -> Health:
    """Return whether a stream has room, as far as its own limits are concerned."""
    config, state = info["config"], info["state"]
    for name, used, limit in (
        ("max_bytes", state["bytes"], config["max_bytes"]),
        ("max_msgs", state["messages"], config["max_msgs"]),
    ):
        if limit > 0 and used >= limit * _FULL:
            return Health.down(
                f"stream {config['name']} is full: it has {used} of {name} = {limit}; "
                "raise the limit, or delete messages that nobody needs"
            )
    return HEALTHY
