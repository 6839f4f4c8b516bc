"""The durable consumer at JetStream: find, update or create it, also if it was deleted."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import nats.errors
import nats.js.errors

from timer_service.client.errors import NoAnswerError
from timer_service.client.nats.link import NatsLink
from timer_service.client.receive.filters import Consumer, subject_parts, uncovered
from timer_service.core.values.address import Kind
from timer_service.nats_client import UNREADABLE_ANSWER

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 5.0
_MOST_UNACKNOWLEDGED = 10_000
"""Of all processes of a consumer. Events that wait for their next attempt count too."""
_NO_CONSUMER = 10014


class DurableConsumer:
    """The consumer of a tenant in the stream of all events, or in the stream that the operator has made for it."""

    def __init__(self, link: NatsLink, consumer: Consumer) -> None:
        self._link = link
        self._consumer = consumer
        self.stream = consumer.stream or link.stream(Kind.EVENT)
        # The operator names the consumer in the stream of a tenant after the tenant.
        self.name = consumer.key if consumer.stream is None else consumer.tenant
        prefix = link.subject(Kind.EVENT, consumer.tenant, "")
        self.subjects = [f"{prefix}{each}" for each in subject_parts(consumer)]
        self._floor: int | None = None
        """The sequence up to which all processes have acknowledged everything. None if it is not known."""
        self._stream_created: str | None = None

    def __str__(self) -> str:
        return f"the consumer {self.name} of the stream {self.stream}"

    @property
    def pull_subject(self) -> str:
        """The subject of requests for deliveries."""
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"

    @property
    def is_managed(self) -> bool:
        """Whether this client creates the consumer and may ask for its state."""
        return self._consumer.stream is None

    async def ensure(self) -> None:
        """Find, update or create the consumer. Raises `NoAnswerError` that says what to do."""
        if not self.is_managed:
            return
        try:
            stream = await self._ask(f"STREAM.INFO.{self.stream}")
            info = await self._find()
            if info is None:
                info = await self._create_at(self._start_in(stream))
            elif changes := self._changes(info):
                info = await self._create({**info["config"], **changes})
            self._floor = info["ack_floor"]["stream_seq"]
            self._stream_created = stream["created"]
        except nats.js.errors.NotFoundError as error:
            raise NoAnswerError(
                f"the broker has no stream {self.stream}: start timer-service, which creates it"
            ) from error
        except nats.js.errors.APIError as error:
            raise NoAnswerError(f"{self} cannot be created: {error.description}") from error
        except UNREADABLE_ANSWER as error:
            raise NoAnswerError(f"the broker sent an answer that cannot be read ({type(error).__name__})") from error

    async def remember_place(self) -> None:
        """Read up to where everything is acknowledged, so that the consumer can be created again at this place."""
        if self.is_managed:
            with suppress(NoAnswerError, nats.js.errors.APIError, *UNREADABLE_ANSWER):
                info = await self._ask(f"CONSUMER.INFO.{self.stream}.{self.name}")
                self._floor = info["ack_floor"]["stream_seq"]
                if info["num_ack_pending"] >= _MOST_UNACKNOWLEDGED:
                    log.warning("%s has %d events that are not settled, so no other comes", self, _MOST_UNACKNOWLEDGED)

    def unanswered(self) -> NoAnswerError:
        """Return the error for a consumer of the operator that does not answer."""
        tenant = self._consumer.tenant
        return NoAnswerError(
            f"{self} does not answer; the operator makes it with `timer-service tenants events {tenant}`, and this "
            f"client needs the login of the tenant, and an inbox_prefix under which it may subscribe"
        )

    def _changes(self, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of the consumer to change.

        A filter is removed only at the start of a process, and only if no other process pulls or has events that are
        not settled. Otherwise the consumer would skip events for another version, which may have more handlers.
        """
        config = info["config"]
        found = {*(config.get("filter_subjects") or [config.get("filter_subject", "")])} - {""}
        wanted = {*self.subjects}
        if self._floor is not None or info.get("num_waiting") or info.get("num_ack_pending"):
            both = {tuple(each.split(".")) for each in found | wanted}
            wanted = set(map(".".join, uncovered(both)))
        wait = nanoseconds(self._consumer.ack_wait)
        if wanted == found and config["ack_wait"] == wait:
            return {}
        return {"filter_subjects": sorted(wanted), "filter_subject": "", "ack_wait": wait}

    def _start_in(self, stream: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return where a new consumer begins. One that was deleted begins where it was.

        Another stream, or one that was restored, has only events that the deleted consumer has not delivered.
        """
        if self._floor is None:
            return {"deliver_policy": "all" if self._consumer.from_start else "new"}
        log.warning("%s was deleted; it is created again", self)
        if stream["created"] != self._stream_created or stream["state"]["last_seq"] < self._floor:
            return {"deliver_policy": "all"}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self._floor + 1}

    async def _create_at(self, start: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create the consumer. If another process does it first, its consumer counts."""
        config = {
            "durable_name": self.name,
            "ack_policy": "explicit",
            "ack_wait": nanoseconds(self._consumer.ack_wait),
            "max_deliver": -1,
            "max_ack_pending": _MOST_UNACKNOWLEDGED,
            "filter_subjects": self.subjects,
        }
        try:
            return await self._create({**config, **start})
        except nats.js.errors.APIError:
            found = await self._find()
            if found is None:
                raise
            return found

    async def _create(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"stream_name": self.stream, "config": config}
        return await self._ask(f"CONSUMER.CREATE.{self.stream}.{self.name}", body)

    async def _find(self) -> Mapping[str, Any] | None:
        try:
            return await self._ask(f"CONSUMER.INFO.{self.stream}.{self.name}")
        except nats.js.errors.NotFoundError as error:
            if error.err_code == _NO_CONSUMER:
                return None
            raise

    async def _ask(self, name: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the answer to a request to JetStream. Raises `APIError`, or `NoAnswerError` that says what to do."""
        data = b"" if body is None else json.dumps(body).encode()
        tenant = self._consumer.tenant
        remedy = (
            f"if the tenants have accounts, let the operator run `timer-service tenants events {tenant}`, and give "
            f"stream='{self._link.stream(Kind.EVENT)}_{tenant}'"
        )
        try:
            request = self._link.client.request(f"$JS.API.{name}", data, timeout=_REQUEST_SECONDS)
            reply = await self._link.run(request)
        except nats.errors.NoRespondersError as error:
            raise NoAnswerError(f"the broker has no JetStream for this login; {remedy}") from error
        except nats.errors.TimeoutError as error:
            raise NoAnswerError(f"JetStream does not answer this login; {remedy}") from error
        except nats.errors.Error as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        answer: Mapping[str, Any] = json.loads(reply.data)
        if "error" in answer:
            nats.js.errors.APIError.from_error(answer["error"])  # raises
        return answer


def nanoseconds(duration: timedelta) -> int:
    """Return a duration in nanoseconds, as JetStream takes it."""
    return duration // timedelta(microseconds=1) * 1000
