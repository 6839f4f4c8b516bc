"""Streams of single tenants, which the operator sets up.

A stream for the commands of each tenant: the server stores the commands of one stream one after the other, so a flood
of one tenant delays all tenants of its stream. A tenant's stream has a queue of its own, from which the stream of
commands takes them.

A stream with the events of a tenant that reads them: a tenant that let the stream of events deliver its events again
and again would delay the service, so no tenant reads that stream. See docs/decisions/0041.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError

from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.log import nanoseconds
from timer_service.adapters.nats.streams import TENANT_CONSUMER, StreamInfo, wanted_stream
from timer_service.adapters.nats.subjects import Subjects, covers
from timer_service.app.login import login_options
from timer_service.config import Config
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.nats_client import UNREADABLE_ANSWER

_SECONDS = 5
_UNSENT_BYTES = 1024 * 1024
_WINDOW = 16
"""How many commands of a tenant the stream of commands takes at a time. One of another tenant waits for these."""
_SHORTEST_WINDOW = 100_000_000
"""In nanoseconds. The streams of the tenants recognize repeats. The stream of commands would drop a command with an id
that another tenant has used, although the server has acknowledged it."""
_MAX_BYTES = 256 * 1024 * 1024
_HEARTBEAT_NANOSECONDS = 1_000_000_000  # the only one that the server accepts here

_Config = Mapping[str, Any]
_T = TypeVar("_T")


async def as_operator(
    config: Config, set_up: Callable[[Client, Subjects, Sequence[str]], Awaitable[_T]], tenants: Sequence[str]
) -> _T:
    """Call `set_up` with a client that has the login of the settings. Raises `StartError` for another broker."""
    if config.broker != "nats":
        raise StartError(
            "TIMER_BROKER_URL: only tenants at NATS have streams to set up. At Redis each tenant has a stream of "
            f"events, and one for its commands if it is in the set {config.subject_prefix}:tenants"
        )
    connection = Connection("timer-service tenants", unsent_bytes=_UNSENT_BYTES)
    await connection.open(config.broker_url, partial(login_options, config))
    try:
        return await set_up(connection.client, Subjects(config.subject_prefix), tenants)
    finally:
        await connection.close()


async def separate_tenants(client: Client, subjects: Subjects, tenants: Sequence[str]) -> list[str]:
    """Give each tenant a stream of its own, and return the tenants that had none. Existing settings stay.

    Tenants without a stream of their own can publish no command afterwards. If it fails, run it again. Raises
    `StartError` with the reason of the server.
    """
    with _start_errors("the streams of the tenants"):
        commands = await _find(client, subjects.stream(Kind.COMMAND))
        replicas = 1 if commands is None else commands["config"]["num_replicas"]
        found = {tenant: await _find(client, subjects.tenant_commands(tenant)) for tenant in tenants}
        streams = {
            tenant: info or await _create(client, _command_stream(subjects, tenant, replicas))
            for tenant, info in found.items()
        }
        sources = [await _source(client, subjects, tenant, info) for tenant, info in streams.items()]
        await _add_sources(client, subjects, sources)
        # Last, because until now the stream of commands had these subjects.
        for tenant, info in streams.items():
            await _update(client, info, {"subjects": [subjects.pattern_of_tenant(Kind.COMMAND, tenant)]})
    return [tenant for tenant, info in found.items() if info is None]


async def _source(client: Client, subjects: Subjects, tenant: str, info: StreamInfo) -> _Config:
    """Return the source that reads a tenant's stream. Create its consumer if it is missing.

    The consumer makes the window small, and works at once after a restart of the server. One that the server makes by
    itself needs 10 s for that. A stream that was created again has a consumer with another name, so another source. The
    old source would ignore the commands of the new stream until they have reached the sequence of the old one.
    """
    stream, created = info["config"]["name"], nanoseconds(info["created"])
    consumer = {"name": f"{TENANT_CONSUMER}{created}", "deliver_subject": subjects.intake(tenant, created)}
    if await _find_info(client, f"CONSUMER.INFO.{stream}.{consumer['name']}") is None:
        config = {
            "durable_name": consumer["name"],
            "deliver_subject": consumer["deliver_subject"],
            "ack_policy": "flow_control",
            "flow_control": True,
            "idle_heartbeat": _HEARTBEAT_NANOSECONDS,
            "max_ack_pending": _WINDOW,
        }
        await _create_consumer(client, stream, config)
    return {"name": stream, "consumer": consumer}


async def _add_sources(client: Client, subjects: Subjects, sources: Sequence[_Config]) -> None:
    """Let the stream of commands also take commands from these streams of tenants, and no longer from publishers.

    The settings are read just before they are changed: another operator may have added tenants.
    """
    commands = await _find(client, subjects.stream(Kind.COMMAND))
    config: _Config = {} if commands is None else commands["config"]
    new_names = {each["name"] for each in sources}
    other_sources = [each for each in config.get("sources") or () if each["name"] not in new_names]
    pattern = subjects.pattern(Kind.COMMAND)
    other_subjects = [each for each in config.get("subjects") or () if not covers(each, pattern)]
    changes = {
        "subjects": other_subjects,
        "sources": [*other_sources, *sources],
        "duplicate_window": _SHORTEST_WINDOW,
    }
    if commands is None:
        await _create(client, {**wanted_stream(subjects, Kind.COMMAND), **changes})
    else:
        await _update(client, commands, changes)


def _command_stream(subjects: Subjects, tenant: str, replicas: int) -> _Config:
    """Return the settings of a tenant's stream. The server gives a stream without subjects its own name as subject."""
    return {
        **wanted_stream(subjects, Kind.COMMAND),
        "name": subjects.tenant_commands(tenant),
        "subjects": [],
        "retention": "workqueue",
        "max_age": 0,
        "max_bytes": _MAX_BYTES,
        "num_replicas": replicas,
    }


async def _update(client: Client, info: StreamInfo, changes: _Config) -> None:
    """Change the settings of a stream, if it has other ones. The server leaves out what is empty."""
    config = info["config"]
    if any((config.get(name) or []) != value for name, value in changes.items()):
        await request(client, f"STREAM.UPDATE.{config['name']}", {**config, **changes}, seconds=_SECONDS)


async def stream_events(client: Client, subjects: Subjects, tenants: Sequence[str]) -> Mapping[str, str]:
    """Let each tenant read its events from a stream of its own. Return the names of these streams.

    Its consumer has the name of the tenant, and begins with the oldest event that is stored. Existing settings stay.
    Raises `StartError` with the reason of the server.
    """
    streams = {tenant: subjects.tenant_events(tenant) for tenant in tenants}
    with _start_errors("the streams with the events of the tenants"):
        events = await _find(client, subjects.stream(Kind.EVENT))
        replicas = 1 if events is None else events["config"]["num_replicas"]
        for tenant, stream in streams.items():
            wanted = _event_stream(subjects, tenant)
            if (found := await _find(client, stream)) is None:
                await _create(client, {**wanted, "num_replicas": replicas})
            elif not _takes_events(found["config"], wanted):
                reason = f"the stream {stream} does not take the events of {tenant}"
                raise StartError(f"{reason}: delete it when it is empty, and try again")
            else:
                await _check_position(client, subjects, found)
            if await _find_info(client, f"CONSUMER.INFO.{stream}.{tenant}") is None:
                await _create_consumer(client, stream, {"durable_name": tenant, "ack_policy": "explicit"})
    return streams


async def _check_position(client: Client, subjects: Subjects, found: StreamInfo) -> None:
    """Raise `StartError` if the stream of a tenant has taken events that the stream of events lacks.

    Then the stream of events is an older copy, and the server would skip its new events until their sequence is
    greater. `found`, the stream of the tenant, was read before the stream of events, because both grow.
    """
    events = await _find(client, subjects.stream(Kind.EVENT))
    taken = max((each.get("seq", 0) for each in found.get("sources") or ()), default=0)
    if events is not None and taken > events["state"]["last_seq"]:
        stream = found["config"]["name"]
        reason = f"the stream {stream} has taken events that {events['config']['name']} does not have"
        raise StartError(f"{reason}: delete it when it is empty, and try again")


def _takes_events(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a stream has the source of the wanted one, and no others."""
    (source,) = wanted["sources"]
    # The server describes a source with more fields than were wanted.
    sources = [{name: each.get(name) for name in source} for each in config.get("sources") or ()]
    return sources == [source] and not config.get("subjects")


def _event_stream(subjects: Subjects, tenant: str) -> Mapping[str, Any]:
    """Return the settings of a stream that keeps each event until the tenant has acknowledged it.

    If it is full of events that are not acknowledged, later ones stay in the stream of events until there is room.
    """
    source = {
        "name": subjects.stream(Kind.EVENT),
        "filter_subject": subjects.pattern_of_tenant(Kind.EVENT, tenant),
        # The server writes its position every two minutes. Without this, if it crashed before the first time and all
        # events here were acknowledged, it would go on from the time of the last one, and skip those that waited.
        "opt_start_seq": 1,
    }
    return {
        **wanted_stream(subjects, Kind.EVENT),
        "name": subjects.tenant_events(tenant),
        "subjects": [],
        "sources": [source],
        "retention": "workqueue",
        "max_age": 0,
        "max_bytes": _MAX_BYTES,
        "allow_atomic": False,
    }


@contextmanager
def _start_errors(what: str) -> Iterator[None]:
    """Raise `StartError` with the reason of the server if `what` cannot be set up."""
    try:
        yield
    except APIError as error:
        raise StartError(f"{what} cannot be set up: {error.description}") from error
    except UNREADABLE_ANSWER as error:
        reason = f"the server sent an answer that cannot be read ({type(error).__name__})"
        raise StartError(f"{what} cannot be set up: {reason}") from error
    except (nats.errors.Error, TimeoutError) as error:
        reason = "JetStream does not answer; this needs the login of the operator"
        raise StartError(f"{what} cannot be set up: {reason}") from error


async def _find(client: Client, stream: str) -> StreamInfo | None:
    """Return the info of a stream, or None if it does not exist."""
    return await _find_info(client, f"STREAM.INFO.{stream}")


async def _find_info(client: Client, name: str) -> StreamInfo | None:
    """Return the answer to a request for the info of a stream or a consumer, or None if it does not exist."""
    try:
        return await request(client, name)
    except NotFoundError:
        return None


async def _create(client: Client, config: Mapping[str, Any]) -> StreamInfo:
    """Create a stream."""
    return await request(client, f"STREAM.CREATE.{config['name']}", config, seconds=_SECONDS)


async def _create_consumer(client: Client, stream: str, config: Mapping[str, Any]) -> None:
    """Create a durable consumer of a stream."""
    name = f"CONSUMER.DURABLE.CREATE.{stream}.{config['durable_name']}"
    await request(client, name, {"stream_name": stream, "config": config}, seconds=_SECONDS)
