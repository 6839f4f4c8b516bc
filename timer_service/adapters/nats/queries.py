"""The NATS micro service that answers queries."""

import logging
from collections.abc import Sequence
from importlib.metadata import version

import nats.micro
from nats.aio.client import Client
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import QueryHandler
from timer_service.core.message import Kind

log = logging.getLogger(__name__)

_IMPORTED_REPLY_PREFIX = "_R_."
"""Prefix of the reply subjects that the server makes for requests from other accounts. No client can choose one."""


async def serve_queries(
    client: Client, subjects: Subjects, reply_prefix: str, names: Sequence[str], answer: QueryHandler
) -> Service:
    """Start to answer queries. Instances share the requests. Requests that do not reply to an inbox are ignored."""

    async def handle(request: Request) -> None:
        # The client chooses the reply subject. Without this check it could make the service publish anywhere.
        reply_to = request._msg.reply  # noqa: SLF001 - the driver has no public access to it
        if not reply_to.startswith((reply_prefix, _IMPORTED_REPLY_PREFIX)):
            log.warning("query ignored: its reply subject is not an inbox", extra={"subject": request.subject})
            return
        address = subjects.address(Kind.QUERY, request.subject)
        reply = await answer(address.message, address.tenant, request.data)
        if reply.code is None:
            await request.respond(reply.body)
        else:
            await request.respond_error(reply.code, reply.message, reply.body)

    config = ServiceConfig(
        name="timer-service",
        version=version("timer-service"),
        description="Queries about timers, signals, runs and buried events.",
    )
    service = await nats.micro.add_service(client, config)
    for name in names:
        await service.add_endpoint(
            EndpointConfig(name=name, subject=subjects.pattern(Kind.QUERY, name), handler=handle)
        )
    # The driver sends a flush before its buffered messages. After the second flush the server has the subscriptions.
    await client.flush()
    await client.flush()
    return service
