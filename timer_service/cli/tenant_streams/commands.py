"""A stream for the commands of each tenant, from which the stream of commands takes them.

The server stores the commands of one stream one after the other, so a flood of one tenant delays all tenants of its
stream. A tenant's stream has a queue of its own. It keeps a command only until the stream of commands has stored it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nats.aio.client import Client

from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.log import nanoseconds
from timer_service.adapters.nats.streams import TENANT_CONSUMER, StreamInfo, wanted_stream
from timer_service.adapters.nats.subjects import Subjects, covers
from timer_service.cli.tenant_streams.set_up import SECONDS, create, create_consumer, find, find_info, start_errors
from timer_service.core.values.message import Kind

_WINDOW = 16
"""How many commands of a tenant the stream of commands takes at a time. One of another tenant waits for these."""
_SHORTEST_WINDOW = 100_000_000
"""In nanoseconds. The streams of the tenants recognize repeats. The stream of commands would drop a command with an id
that another tenant has used, although the server has acknowledged it."""
_MAX_BYTES = 256 * 1024 * 1024
_HEARTBEAT_NANOSECONDS = 1_000_000_000  # the only one that the server accepts here

_Config = Mapping[str, Any]


async def separate_tenants(client: Client, subjects: Subjects, tenants: Sequence[str]) -> list[str]:
    """Give each tenant a stream of its own, and return the tenants that had none. Existing settings stay.

    Tenants without a stream of their own can publish no command afterwards. If it fails, run it again. Raises
    `StartError` with the reason of the server.
    """
    with start_errors("the streams of the tenants"):
        commands = await find(client, subjects.stream(Kind.COMMAND))
        found = {tenant: await find(client, subjects.tenant_commands(tenant)) for tenant in tenants}
        replicas = 1 if commands is None else commands["config"]["num_replicas"]
        streams = {
            tenant: info or await create(client, _empty_stream(subjects, tenant, replicas))
            for tenant, info in found.items()
        }
        sources = {tenant: await _source(client, subjects, tenant, info) for tenant, info in streams.items()}
        await _take_from(client, subjects, sources)
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
    if await find_info(client, f"CONSUMER.INFO.{stream}.{consumer['name']}") is None:
        config = {
            "durable_name": consumer["name"],
            "deliver_subject": consumer["deliver_subject"],
            "ack_policy": "flow_control",
            "flow_control": True,
            "idle_heartbeat": _HEARTBEAT_NANOSECONDS,
            "max_ack_pending": _WINDOW,
        }
        await create_consumer(client, stream, config)
    return {"name": stream, "consumer": consumer}


async def _take_from(client: Client, subjects: Subjects, sources: Mapping[str, _Config]) -> None:
    """Make the stream of commands take them from these sources of tenants, from those that it has, and from no others.

    The settings are read just before they are changed: another operator may have added tenants.
    """
    commands = await find(client, subjects.stream(Kind.COMMAND))
    if commands is None:
        wanted = {"subjects": [], "sources": [*sources.values()], "duplicate_window": _SHORTEST_WINDOW}
        await create(client, {**wanted_stream(subjects, Kind.COMMAND), **wanted})
        return
    config, pattern = commands["config"], subjects.pattern(Kind.COMMAND)
    wanted_names = {each["name"] for each in sources.values()}
    kept = [each for each in config.get("sources") or () if each["name"] not in wanted_names]
    others = [each for each in config.get("subjects") or () if not covers(each, pattern)]
    wanted = {"subjects": others, "sources": [*kept, *sources.values()], "duplicate_window": _SHORTEST_WINDOW}
    await _update(client, commands, wanted)


def _empty_stream(subjects: Subjects, tenant: str, replicas: int) -> _Config:
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
    config = info["config"]
    if any((config.get(name) or []) != value for name, value in changes.items()):
        await request(client, f"STREAM.UPDATE.{config['name']}", {**config, **changes}, seconds=SECONDS)
