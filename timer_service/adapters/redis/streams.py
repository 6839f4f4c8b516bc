"""What the service needs of the Redis server: room, no eviction, a primary; and the age of what the streams keep."""

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from timer_service.core.due.loop import Pass
from timer_service.core.ports.health import HEALTHY, Health, OutageLog, RecentFailure, worst
from timer_service.core.values.address import TENANT_PATTERN, Kind
from timer_service.core.values.errors import StartError
from timer_service.core.values.raw_command import decode_text
from timer_service.redis_client import ERRORS, Keys, RedisClient, reason_of

log = logging.getLogger(__name__)

_AGE = {Kind.COMMAND: timedelta(days=7), Kind.EVENT: timedelta(days=7), Kind.DEAD_LETTER: timedelta(days=30)}
STORED_KINDS = tuple(_AGE)
"""The kinds of messages that streams store."""
REQUEST_SECONDS = 10
"""How long a query or a request waits for an instance. Then its sender has given up."""
_OWN_KINDS = (Kind.COMMAND, Kind.QUERY, Kind.REQUEST)
"""What tenants can have streams of their own for."""
_SCANNED_AT_ONCE = 100
_AGAIN_MS = 1000
_FULL = 0.99
_REFUSED_SECONDS = 65
"""How long a refusal counts. Messages that wait for room are published again within a minute."""


class Identity(NamedTuple):
    """What the server keeps about the log of commands."""

    log: str
    created: int
    """When it was first used, in Unix milliseconds."""
    database: str
    """The database of the service that reads it."""


class StreamUpkeep:
    """A worker that looks at the server, deletes what is too old, and learns the tenants with streams of their own."""

    def __init__(self, client: RedisClient, keys: Keys, *, manage: bool) -> None:
        self._client = client
        self._keys = keys
        self._manage = manage
        self.tenants: Sequence[str] = ()
        """The tenants that publish commands, queries and requests to streams of their own."""
        self.handled_until = ""
        """The id up to which commands are handled, as far as this instance knows. Later ones are kept."""
        self._wrong: Mapping[str, str] = {}
        """A key that is no stream, for each tenant of whom nothing is read because of it."""
        self._scanned = 0
        """How far the keys were looked through for streams of events."""
        self._identity: Sequence[bytes] = ()
        """The id of the log and its database, when it was opened."""
        self.log_is_other = False
        """Whether the log of commands was deleted since it was opened, or belongs to another database now."""
        self._server_ms = 0
        """The time of the server when it was last asked."""
        self.keeps_events_for = _AGE[Kind.EVENT] if manage else None
        """How long events are kept; None: the operator decides."""
        self._checked = HEALTHY
        self._refused = RecentFailure(_REFUSED_SECONDS)
        self._outage = OutageLog(part="storage of the Redis server", quiet_seconds=0)

    def name(self, kind: Kind) -> str:
        """Return the key of the stream that stores a kind."""
        return self._keys.stream(kind)

    @property
    def health(self) -> Mapping[Kind, Health]:
        """The health of each stream: all of them are in the memory of one server."""
        return dict.fromkeys(STORED_KINDS, worst(self._checked, self._refused.health))

    def record(self, refusal: str | None) -> None:
        """Record whether the server had room for messages. `refusal`: what it said if not."""
        if refusal is None:
            self._refused.clear()
        else:
            self._refused.record(f"the Redis server has no room: {refusal}")

    async def prepare(self) -> None:
        """Look at the server at the start. Raises `StartError` if it may delete streams, and one of `ERRORS`.

        Without room, or on a replica, the service starts, and its health says why nothing is stored.
        """
        policy = check_policy(await self._look())
        if policy is not None:
            raise StartError(policy)

    async def identify(self, database: str) -> Identity:
        """Return the identity of the log. `database`: to which it belongs if it belongs to none.

        Raises `StartError` if the server has something else in its place.
        """
        await self._look()
        name, created, owner = await self._found_or_set(
            {"id": secrets.token_hex(8), "created": self._server_ms, "database": database}
        )
        if not created.isdigit():
            raise StartError(f"the hash {self._keys.log} is damaged: its field `created` is no number. Delete the hash")
        self._identity, self.log_is_other = [name, owner], False
        return Identity(decode_text(name), int(created), decode_text(owner))

    async def log_id(self) -> str:
        """Return the identity of the log. It gets one if it has none."""
        return decode_text((await self._found_or_set({"id": secrets.token_hex(8)}))[0])

    async def _found_or_set(self, wanted: Mapping[str, str | int]) -> Sequence[bytes]:
        """Return the values of fields in the hash of the log. Those that are missing get the wanted values first."""
        found: Sequence[bytes] = await self._client.hmget(self._keys.log, [*wanted])
        if None in found:  # a server without room refuses to set what is set already, too
            pipeline = self._client.pipeline(transaction=True)
            for name, value in wanted.items():
                pipeline.hsetnx(self._keys.log, name, value)
            pipeline.hmget(self._keys.log, [*wanted])
            found = (await pipeline.execute())[-1]
        return found

    async def tick(self, now: int) -> Pass:
        """Look at the server, and delete what is too old. Look again soon while there is a problem."""
        try:
            await self._look()
            if self._identity:
                found = await self._client.hmget(self._keys.log, ["id", "database"])
                self.log_is_other = found != self._identity
            if self._manage:
                await self._delete_old()
        except ERRORS as error:  # the connection says whether the server is away
            self._checked = Health(reason=f"the state of the Redis server is not known: {reason_of(error)}")
        health = worst(*self.health.values())
        if health.reason is None:
            self._outage.record_success()
        else:
            self._outage.record_failure(health.reason)
        return Pass(0, None if health.reason is None else now + _AGAIN_MS)

    def oldest_ms(self, kind: Kind) -> int | None:
        """Return the instant before which stored messages of a kind may be deleted, in Unix ms; None: they may not."""
        return self._server_ms - _AGE[kind] // timedelta(milliseconds=1) if self._manage else None

    def is_too_late(self, entry: str) -> bool:
        """Return whether the sender of a request, given by its id, has given up."""
        return int(entry.partition("-")[0]) < self._server_ms - 1000 * REQUEST_SECONDS

    async def _look(self) -> Mapping[str, Any]:
        """Look at the server: its time and its state, and which tenants have streams of their own. Return its state."""
        seconds, microseconds = await self._client.time()
        self._server_ms = seconds * 1000 + microseconds // 1000
        try:
            found = sorted(map(decode_text, await self._client.smembers(self._keys.tenants)))
        except ResponseError as error:
            raise ResponseError(f"{self._keys.tenants}: {error}") from error
        tenants = [each for each in found if re.fullmatch(TENANT_PATTERN, each)]
        try:
            self.tenants = await self._with_streams(tenants)
        except NoPermissionError:  # then a key of one tenant that is no stream stops all
            self.tenants = tenants
        info: Mapping[str, Any] = await self._client.info()
        self._checked = check_server(info)
        return info

    async def _with_streams(self, tenants: Sequence[str]) -> Sequence[str]:
        """Return the tenants of which no key is something else than a stream. Reading that would fail for all."""
        pipeline = self._client.pipeline(transaction=False)
        keys = [(each, self._keys.stream(kind, each)) for each in tenants for kind in _OWN_KINDS]
        for _, key in keys:
            pipeline.type(key)
        types = zip(keys, await pipeline.execute() if keys else (), strict=True)
        wrong = {tenant: key for (tenant, key), found in types if found not in {b"stream", b"none"}}
        for tenant, key in wrong.items():
            if tenant not in self._wrong:
                log.error("a tenant's commands and queries are not read: a key is no stream", extra={"key": key})
        self._wrong = wrong
        return [each for each in tenants if each not in wrong]

    async def _delete_old(self) -> None:
        """Delete old commands that were read, dead letters, events of some tenants, and requests.

        Events and dead letters are also deleted when one is stored in their stream.
        """
        try:
            self._scanned, found = await self._client.scan(
                self._scanned, match=f"{self._keys.stream(Kind.EVENT)}:*", count=_SCANNED_AT_ONCE, _type="stream"
            )
        except NoPermissionError:  # then events of tenants that get no new ones stay
            found = []
        letters, commands = self._keys.stream(Kind.DEAD_LETTER), self._keys.stream(Kind.COMMAND)
        oldest: dict[str, Any] = dict.fromkeys(map(decode_text, found), self.oldest_ms(Kind.EVENT))
        oldest[letters] = self.oldest_ms(Kind.DEAD_LETTER)
        if self.handled_until:
            until = self.oldest_ms(Kind.COMMAND) or 0
            is_handled = until < int(self.handled_until.partition("-")[0])
            oldest[commands] = until if is_handled else self.handled_until
        for kind in (Kind.QUERY, Kind.REQUEST):
            for tenant in ("", *self.tenants):
                oldest[self._keys.stream(kind, tenant)] = self._server_ms - 2000 * REQUEST_SECONDS
        pipeline = self._client.pipeline(transaction=False)
        for key, until in oldest.items():
            pipeline.xtrim(key, minid=until, approximate=key == commands)
        answers = await pipeline.execute(raise_on_error=False)
        for key, answer in zip(oldest, answers, strict=True):
            if isinstance(answer, Exception):
                reason = f"{key}: old messages cannot be deleted: {reason_of(answer)}"
                self._checked = worst(self._checked, Health(reason=reason))


def check_policy(info: Mapping[str, Any]) -> str | None:
    """Return what is wrong if a server without room deletes keys that have no time to live, as streams have none."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if not policy.startswith("allkeys"):
        return None
    return f"the Redis server may delete streams (maxmemory-policy {policy}): set it to noeviction"


def check_server(info: Mapping[str, Any]) -> Health:
    """Return whether a server stores messages: it is no replica, has room, and does not delete streams by itself."""
    policy = check_policy(info)
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if info.get("role") in {"slave", "replica"}:
        return Health.down("the Redis server is a replica, which stores nothing: name its primary in TIMER_BROKER_URL")
    if policy is not None:
        return Health.down(policy)
    if most and used >= most * _FULL:
        return Health.down(
            f"the Redis server has no room: it uses {used} of maxmemory = {most} bytes; raise it, or delete messages "
            "that nobody needs"
        )
    return HEALTHY
