"""The upkeep of the streams while the service runs."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta

import nats.errors
from nats.aio.client import Client
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.storage import Storage
from timer_service.adapters.nats.streams import STORED_KINDS, StreamInfo, prepare_stream
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.due.loop import Pass
from timer_service.core.ports.health import HEALTHY, Health, OutageLog, worst
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_AGAIN_MS = 1000
_FULL = 0.99
"""The share of a limit from which a stream counts as full. The next messages may still fit, the next batch may not."""


class StreamUpkeep:
    """A worker that checks the streams again, as at the start: it creates and updates them, or only reports them.

    A missing stream is created empty. The messages that it had are lost.
    """

    def __init__(
        self,
        client: Client,
        subjects: Subjects,
        storage: Storage,
        found: Mapping[Kind, StreamInfo],
        *,
        manage: bool,
    ) -> None:
        """`found`: the streams at the start."""
        self._client = client
        self._storage = storage
        self._subjects = subjects
        self._manage = manage
        self._found = dict(found)
        self._outages = {
            kind: OutageLog(part=f"stream {subjects.stream(kind)}", quiet_seconds=0) for kind in STORED_KINDS
        }
        self._checked: dict[Kind, Health] = {kind: check_room(info) for kind, info in found.items()}

    @property
    def health(self) -> Mapping[Kind, Health]:
        """The health of each stream at the last check, or since then if the broker had no room.

        Without a connection, nothing is known about the streams.
        """
        return {
            kind: worst(checked, self._storage.health(kind, self._found.get(kind)))
            for kind, checked in self._checked.items()
        }

    @property
    def keeps_events_for(self) -> timedelta | None:
        """How long the stream of events keeps them, at the last look; None: for ever."""
        age: int = self._found[Kind.EVENT]["config"]["max_age"]
        return timedelta(microseconds=age // 1000) if age > 0 else None

    async def tick(self, now: int) -> Pass:
        """Check every stream once, if the broker is connected. Check again soon while one has a problem."""
        if self._client.is_connected:
            checks = asyncio.gather(*map(self._check, STORED_KINDS))
            _, checked = await asyncio.gather(self._storage.look_up(), checks)
            if self._client.is_connected:  # otherwise a check without an answer shows nothing about the stream
                self._checked = dict(zip(STORED_KINDS, checked, strict=True))
                self._log()
        well = all(health.reason is None for health in self.health.values())
        return Pass(0, None if well else now + _AGAIN_MS)

    async def _check(self, kind: Kind) -> Health:
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
