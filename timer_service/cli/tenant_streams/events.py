"""A stream with the events of a tenant that reads them, which takes them from the stream of events.

The server sends what the consumers of a stream deliver, and the acknowledgements of what is stored there, one after the
other. If a tenant let the stream of events deliver its events again and again, the service would wait behind these. So
no tenant reads that stream. See docs/decisions/0041.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nats.aio.client import Client

from timer_service.adapters.nats.streams import StreamInfo, wanted_stream
from timer_service.adapters.nats.subjects import Subjects
from timer_service.cli.tenant_streams.set_up import create, create_consumer, find, find_info, start_errors
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Kind

_MAX_BYTES = 256 * 1024 * 1024


async def stream_events(client: Client, subjects: Subjects, tenants: Sequence[str]) -> Mapping[str, str]:
    """Let each tenant read its events from a stream of its own. Return the names of these streams.

    Its consumer has the name of the tenant, and begins with the oldest event that is stored. Existing settings stay.
    Raises `StartError` with the reason of the server.
    """
    streams = {tenant: subjects.tenant_events(tenant) for tenant in tenants}
    with start_errors("the streams with the events of the tenants"):
        events = await find(client, subjects.stream(Kind.EVENT))
        replicas = 1 if events is None else events["config"]["num_replicas"]
        for tenant, stream in streams.items():
            wanted = _stream(subjects, tenant)
            if (found := await find(client, stream)) is None:
                await create(client, {**wanted, "num_replicas": replicas})
            elif not _takes_events(found["config"], wanted):
                raise StartError(f"the stream {stream} does not take the events of {tenant}: delete it, and try again")
            else:
                await _check_position(client, subjects, found)
            if await find_info(client, f"CONSUMER.INFO.{stream}.{tenant}") is None:
                await create_consumer(client, stream, {"durable_name": tenant, "ack_policy": "explicit"})
    return streams


async def _check_position(client: Client, subjects: Subjects, found: StreamInfo) -> None:
    """Raise `StartError` if a stream has taken events that the stream of events lacks, because it is an older copy.

    The server would skip new events until they have reached the sequence of those. `found`: read before, as both grow.
    """
    events = await find(client, subjects.stream(Kind.EVENT))
    taken = max((each.get("seq", 0) for each in found.get("sources") or ()), default=0)
    if events is not None and taken > events["state"]["last_seq"]:
        stream = found["config"]["name"]
        reason = f"the stream {stream} has taken events that {events['config']['name']} does not have"
        raise StartError(f"{reason}: delete it when it is empty, and try again")


def _takes_events(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a stream has the source of the wanted one, and no others."""
    (source,) = wanted["sources"]
    sources = [{name: each.get(name) for name in source} for each in config.get("sources") or ()]
    return sources == [source] and not config.get("subjects")


def _stream(subjects: Subjects, tenant: str) -> Mapping[str, Any]:
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
