"""Checks of a RabbitMQ server, with the permissions of the service's user."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from aiormq import Connection
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed
from rstream.exceptions import ServerError

from timer_service.adapters.rabbitmq.names import Names
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.set_up import AWAY, is_of_another_type
from timer_service.adapters.rabbitmq.stream import ERRORS as STREAM_ERRORS
from timer_service.adapters.rabbitmq.stream import FIRST, LAST, StreamConnection
from timer_service.app.login import login_options
from timer_service.cli.doctor.exposure import check_exposure
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.client.lookup import url_without_login
from timer_service.config import Config
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.rabbit_client import ANSWER_SECONDS, ERRORS, reason_of

_KINDS = (Kind.COMMAND, Kind.EVENT, Kind.DEAD_LETTER)
_OLDEST, _NEWEST = (3, 10), (4, 0)
_ALARM_SECONDS = 1
_TOO_LARGE = 4 * 1024 * 1024 + 1
_PAGE = "docs/brokers/rabbitmq.md"
_LOST = (
    "Wait until this node has started. If it crashed just after the queue was created, the queue is lost and cannot be "
    "deleted: reset the node, or use another virtual host."
)
_SYNC = Finding(
    "durability",
    Status.NOTE,
    "a stream confirms a message before it is on the disk: a power cut can lose confirmed messages of a single server",
    f"Wait for outcomes if you cannot accept that ({_PAGE}).",
)
_CLOCK = Finding(
    "clock",
    Status.NOTE,
    "RabbitMQ does not tell its time, from which timers with dueIn count",
    "Synchronize both machines (NTP).",
)


async def check_rabbitmq(config: Config) -> Sequence[Finding | Skew]:
    """Connect, and check the server, its exchanges, queues and streams, its alarms, and who reads."""
    try:
        server = Server(config.broker_url, partial(login_options, config))
        connection = await server.connect("timer-service-doctor")
        try:
            return [finding async for finding in _check_connected(connection, server, config)]
        finally:
            await connection.close()
    except (*ERRORS, StartError) as error:
        text = f"{url_without_login(config.broker_url)}: {reason_of(error)}"
        remedy = "Check that the server runs, and check --server or TIMER_BROKER_URL, and TIMER_BROKER_*."
        return [Finding("broker", Status.FAIL, text, remedy)]


async def _check_connected(connection: Connection, server: Server, config: Config) -> AsyncIterator[Finding]:
    """Do the checks of a connection."""
    names = Names(config.subject_prefix)
    login = await server.login()
    yield check_version(str(connection.server_properties.get("version")), f"{server.host}:{server.port}")
    has_password = login.password != "guest"  # noqa: S105 - which everyone knows
    for finding in check_exposure(server.host, encrypted=login.tls is not None, authenticated=has_password):
        yield finding
    yield _SYNC
    yield _CLOCK
    for kind in _KINDS:
        queues: dict[str, Any] = {names.stream(kind): {"x-queue-type": "stream"}}
        missing = await _missing(connection, exchanges={names.exchange(kind): "topic"}, queues=queues)
        for finding in _check_missing(missing, managed=config.manage_streams):
            yield finding
        if not missing:
            yield await _check_stream(server, names.stream(kind), names.exchange(kind))
    requests = [names.exchange(kind) for kind in (Kind.QUERY, Kind.REQUEST)]
    exchanges = {**dict.fromkeys(requests, "topic"), names.hints: "fanout"}
    missing = await _missing(connection, exchanges=exchanges, queues=dict.fromkeys(requests))
    for finding in _check_missing(missing, managed=config.manage_streams):
        yield finding
    yield await _check_reader(connection, names)
    room = await _check_alarm(connection, names)  # behind the others: with an alarm, the server reads nothing more
    yield room
    if room.status is Status.OK:
        yield await _check_size(connection, names)


def check_version(version: str, address: str) -> Finding:
    """Check the version of the server."""
    text = f"RabbitMQ {version} at {address}"
    numbers = tuple(int(each) for each in version.split(".")[:2] if each.isdigit())
    if numbers < _OLDEST:
        return Finding("broker", Status.FAIL, f"{text} is too old", "Run RabbitMQ 3.10 to 4.0.")
    if numbers > _NEWEST:
        return Finding("broker", Status.WARN, f"{text} was not tested", "Run RabbitMQ 3.10 to 4.0.")
    return Finding("broker", Status.OK, text)


async def _missing(
    connection: Connection, *, exchanges: Mapping[str, str], queues: Mapping[str, dict[str, Any] | None]
) -> dict[str, str]:
    """Return what does not exist, or is of another type, and how the server says so.

    The server compares the type of what exists if it is created again, which only a user can ask who may create it.
    """
    found = {}
    for name, kind in exchanges.items():
        channel = await connection.channel()  # the server closes it with the answer
        try:
            await channel.exchange_declare(name, passive=True, timeout=ANSWER_SECONDS)
            with suppress(ChannelAccessRefused):
                await channel.exchange_declare(name, exchange_type=kind, durable=True, timeout=ANSWER_SECONDS)
        except ChannelNotFoundEntity as error:
            found[f"exchange {name}"] = reason_of(error)
        except ChannelPreconditionFailed as error:
            if is_of_another_type(error):
                found[f"exchange {name}"] = reason_of(error)
    for name, settings in queues.items():
        if isinstance(answer := await _consumers(connection, name), str):
            found[f"queue {name}"] = answer
        elif settings is not None:
            channel = await connection.channel()
            try:
                with suppress(ChannelAccessRefused):
                    await channel.queue_declare(name, durable=True, arguments=settings, timeout=ANSWER_SECONDS)
            except ChannelPreconditionFailed as error:
                if is_of_another_type(error):
                    found[f"queue {name}"] = reason_of(error)
    return found


async def _consumers(connection: Connection, queue: str) -> int | str:
    """Return how many consumers a queue has; if it does not exist, how the server says so."""
    channel = await connection.channel()
    try:
        return (await channel.queue_declare(queue, passive=True, timeout=ANSWER_SECONDS)).consumer_count or 0
    except ChannelNotFoundEntity as error:
        return reason_of(error)


def _check_missing(missing: dict[str, str], *, managed: bool) -> Iterator[Finding]:
    """Report what does not exist, or is of another type. `managed`: a service creates it."""
    for name, reason in missing.items():
        if AWAY in reason:
            yield Finding(name, Status.FAIL, reason, _LOST)
        elif "NOT_FOUND" not in reason:
            yield Finding(name, Status.FAIL, reason, "Save the messages that it has, and delete it.")
        elif managed:
            yield Finding(name, Status.WARN, reason, "The service creates it when it starts.")
        else:
            remedy = "Create it (deploy/rabbitmq/definitions.json has it), or set TIMER_MANAGE_STREAMS=true."
            yield Finding(name, Status.FAIL, f"{reason}, and TIMER_MANAGE_STREAMS is off", remedy)


async def _check_stream(server: Server, stream: str, exchange: str) -> Finding:
    """Check that a stream can be read, and gets the messages of its exchange."""
    check = f"stream {stream}"
    try:
        connection = await StreamConnection.open(server, stream)
        try:
            first, last = await connection.look(FIRST), await connection.look(LAST)
            is_bound = await connection.is_bound_to(exchange)
        finally:
            await connection.close()
    except STREAM_ERRORS as error:
        text = f"cannot be read at port {server.stream_port}: {reason_of(error)}"
        what = "Enable the plugin rabbitmq_stream, and check stream_port in the URL"
        if isinstance(error, ServerError):
            what = "Use the login of the service, with its permissions"
        return Finding(check, Status.FAIL, text, f"{what} ({_PAGE}).")
    if not is_bound:
        text = f"is not bound to exchange {exchange}: RabbitMQ confirms its messages and drops them"
        return Finding(check, Status.FAIL, text, "Bind it with the key #. A service with TIMER_MANAGE_STREAMS does it.")
    return Finding(check, Status.OK, f"{last.end - first.first if first and last else 0} messages")


async def _check_reader(connection: Connection, names: Names) -> Finding:
    """Check whether a service was here, and whether one is connected: it serves queries."""
    if isinstance(await _consumers(connection, names.owner), str):
        return Finding("reader", Status.WARN, "no service has read commands here yet", "Run `timer-service serve`.")
    instances = await _consumers(connection, names.exchange(Kind.QUERY))
    if isinstance(instances, int) and instances:
        return Finding("reader", Status.OK, f"{instances} instances of the service serve queries")
    remedy = "If no service runs, start it: `timer-service serve`. If one runs, its flows above say why."
    return Finding("reader", Status.WARN, "no service serves queries at the moment", remedy)


async def _check_alarm(connection: Connection, names: Names) -> Finding:
    """Check whether the server takes messages, with some that no queue gets. It blocks behind the first one."""
    try:
        async with asyncio.timeout(_ALARM_SECONDS):
            channel = await connection.channel(publisher_confirms=True)
            for _ in range(2):
                await channel.basic_publish(b"", routing_key=f"{names.prefix}.nobody")
    except TimeoutError:
        text = "RabbitMQ blocks publishers: it has an alarm, as its memory or its disk is nearly full"
        return Finding("room", Status.FAIL, text, "See vm_memory_high_watermark and disk_free_limit of the server.")
    except AMQPError as error:
        return Finding("room", Status.FAIL, reason_of(error), f"Give the service its permissions ({_PAGE}).")
    return Finding("room", Status.OK, "the server takes messages")


async def _check_size(connection: Connection, names: Names) -> Finding:
    """Check whether the server refuses a message that is too large, with one that no queue gets."""
    channel = await connection.channel(publisher_confirms=True)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await channel.basic_publish(bytes(_TOO_LARGE), routing_key=f"{names.prefix}.nobody")
    except ChannelPreconditionFailed:
        return Finding("size", Status.OK, "the server refuses messages of more than 4 MB")
    except TimeoutError:
        return Finding("size", Status.NOTE, "sending 4 MB to the server takes too long to see whether it refuses them")
    text = "the server takes messages of more than 4 MB, and the service reads a command whole, however large it is"
    return Finding("size", Status.WARN, text, f"Set max_message_size = {_TOO_LARGE - 1} in rabbitmq.conf.")
