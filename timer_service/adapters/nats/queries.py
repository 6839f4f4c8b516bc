"""Queries as endpoints of a NATS micro service."""

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

_FROM_ANOTHER_ACCOUNT = "_R_."
"""Reply subjects the server makes for requests that were imported; it lets no client name one."""


async def serve_queries(
    client: Client, subjects: Subjects, reply_prefix: str, names: Sequence[str], answer: QueryHandler
) -> Service:
    """Start answering; every instance shares the requests. Only requests from inboxes under `reply_prefix` count."""

    async def handle(request: Request) -> None:
        # The reply subject is the asker's to choose: without this check it would be published to on its behalf.
        reply_to = request._msg.reply  # noqa: SLF001 - the driver has no other way to it
        if not reply_to.startswith((reply_prefix, _FROM_ANOTHER_ACCOUNT)):
            log.warning("query not answered: its reply subject is no inbox", extra={"subject": request.subject})
            return
        address = subjects.address(Kind.QUERY, request.subject)
        answered = await answer(address.message, address.tenant, request.data)
        if answered.code is None:
            await request.respond(answered.body)
        else:
            await request.respond_error(answered.code, answered.message, answered.body)

    config = ServiceConfig(
        name="timer-service", version=version("timer-service"), description="Durable timers: questions about them."
    )
    service = await nats.micro.add_service(client, config)
    for name in names:
        await service.add_endpoint(
            EndpointConfig(name=name, subject=subjects.pattern(Kind.QUERY, name), handler=handle)
        )
    # The driver sends a flush ahead of what it holds back: once the second one is answered the server knows of us.
    await client.flush()
    await client.flush()
    return service
