"""Checks of a Redis or Valkey server, with the permissions of the service's user."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from redis.exceptions import ResponseError

from timer_service.adapters.redis.streams import check_server
from timer_service.app.login import redis_tls, user_and_password
from timer_service.cli.doctor.exposure import check_exposure
from timer_service.cli.doctor.finding import Finding, Skew, Status, measure_skew
from timer_service.client.lookup import url_without_login
from timer_service.config import Config
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.core.values.raw_command import decode_text
from timer_service.redis_client import ERRORS, Keys, RedisClient, new_client, reason_of

_KINDS = (Kind.COMMAND, Kind.DEAD_LETTER)
_OLDEST = 7
_PAGE = "docs/brokers/redis.md"


async def check_redis(config: Config) -> Sequence[Finding | Skew]:
    """Connect, and check the server, its storage, the streams, who reads, and the clock."""
    try:
        login = user_and_password(config)
        client = new_client(config.broker_url, "timer-service-doctor", login=lambda: login, **redis_tls(config))
        async with client:
            return await _check_connected(client, config)
    except (*ERRORS, StartError) as error:
        text = f"{url_without_login(config.broker_url)}: {reason_of(error)}"
        remedy = "Check that the server runs, and check --server or TIMER_BROKER_URL, and TIMER_BROKER_*."
        return [Finding("broker", Status.FAIL, text, remedy)]


async def _check_connected(client: RedisClient, config: Config) -> Sequence[Finding | Skew]:
    """Do the checks of a connection."""
    keys, parts = Keys(config.subject_prefix), urlsplit(config.broker_url)
    asked_at = datetime.now(UTC)
    seconds, microseconds = await client.time()
    reading = datetime.fromtimestamp(seconds + microseconds / 1e6, UTC)
    found: list[Finding | Skew] = [measure_skew("the broker's clock", asked_at=asked_at, reading=reading)]
    info = await client.info()
    has_login = bool(config.broker_user or config.secret("broker_password") or parts.username or parts.password)
    found += check_version(info, parts.netloc.rpartition("@")[2])
    found += check_exposure(parts.hostname or "?", encrypted=parts.scheme.endswith("s"), authenticated=has_login)
    found += check_storage(info, await _setting(client, "appendfsync"))
    for kind in _KINDS:
        found.append(await _check_stream(client, keys.stream(kind)))
    found.append(await _check_reader(client, keys))
    found += await _check_tenants(client, keys)
    return found


def check_version(info: Mapping[str, Any], address: str) -> Iterator[Finding]:
    """Check the version of the server."""
    server = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version')}"
    if int(str(info.get("redis_version", "0")).partition(".")[0]) < _OLDEST:
        yield Finding("broker", Status.FAIL, f"{server} at {address} is too old", "Run Redis 7.0 or newer, or Valkey.")
    else:
        yield Finding("broker", Status.OK, f"{server} at {address}")


def check_storage(info: Mapping[str, Any], fsync: str | None) -> Iterator[Finding]:
    """Check what the server stores and what it loses. `fsync`: its setting, if this user may see it."""
    health = check_server(info)
    if health.reason is not None:
        yield Finding("storage", Status.FAIL, health.reason, f"See {_PAGE}.")
    if not info.get("aof_enabled"):
        text = "appendonly is off: a restart loses what was stored since the last snapshot"
        yield Finding("durability", Status.WARN, text, "Set appendonly yes and appendfsync always.")
    elif fsync is None:
        text = "doctor may not see whether the server syncs to disk before it answers"
        yield Finding("durability", Status.NOTE, text, "Set appendfsync always. See it here: allow CONFIG GET.")
    elif fsync != "always":
        text = f"appendfsync is {fsync}: a power cut can lose about a second of confirmed messages"
        yield Finding("durability", Status.WARN, text, "Set appendfsync always.")
    else:
        yield Finding("durability", Status.OK, "the server syncs to disk before it answers")
    if health.reason is None:
        limit = f"of maxmemory = {info['maxmemory']}" if info.get("maxmemory") else "without a limit (maxmemory 0)"
        yield Finding("storage", Status.OK, f"uses {info.get('used_memory')} bytes {limit}")


async def _setting(client: RedisClient, name: str) -> str | None:
    """Return a setting of the server; None if this user may not see it."""
    try:
        found = await client.config_get(name)
    except ResponseError:
        return None
    return str(found.get(name, ""))


async def _check_stream(client: RedisClient, key: str) -> Finding:
    """Check that a stream can be read."""
    try:
        length = await client.xlen(key)
    except ResponseError as error:
        return Finding(f"stream {key}", Status.FAIL, reason_of(error), f"Give the service its permissions ({_PAGE}).")
    return Finding(f"stream {key}", Status.OK, f"{length} messages")


async def _check_tenants(client: RedisClient, keys: Keys) -> Sequence[Finding]:
    """Check that the service knows each tenant that has commands in a stream of its own."""
    begin = f"{keys.stream(Kind.COMMAND)}:"
    known = set(map(decode_text, await client.smembers(keys.tenants)))
    streams = sorted([decode_text(key) async for key in client.scan_iter(f"{begin}*", _type="stream")])
    return [
        Finding(
            f"stream {stream}",
            Status.FAIL,
            f"{waiting} commands wait, and the service does not read the stream",
            f"redis-cli SADD {keys.tenants} {stream.removeprefix(begin)}",
        )
        for stream in streams
        if stream.removeprefix(begin) not in known and (waiting := await client.xlen(stream))
    ]


async def _check_reader(client: RedisClient, keys: Keys) -> Finding:
    """Check whether a service reads the commands: it has a connection with a name."""
    owner = await client.hget(keys.log, "database")
    if owner is None:
        return Finding("reader", Status.WARN, "no service has read commands here yet", "Run `timer-service serve`.")
    try:
        clients = await client.client_list()
    except ResponseError:
        text = f"the commands belong to the database {decode_text(owner)}"
        return Finding("reader", Status.NOTE, text, "To see whether a service reads, allow CLIENT LIST.")
    if any(each.get("name") == "timer-service-log" for each in clients):
        return Finding("reader", Status.OK, "a service reads the commands")
    remedy = "If no service runs, start it: `timer-service serve`. If one runs, its flow of commands above says why."
    return Finding("reader", Status.WARN, "no service reads the commands at the moment", remedy)
