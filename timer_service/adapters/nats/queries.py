"""The NATS micro service that answers queries."""

import asyncio
import logging
from collections.abc import Sequence
from importlib.metadata import version

import nats.errors
from nats.aio.client import Client
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER, Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.replies import may_reply_to
from timer_service.core.ports.broker import QueryHandler, QueryReply
from timer_service.core.values.error_text import error_text
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_IMPORTED_REPLY_PREFIX = "_R_."
"""Prefix of the reply subjects that the server makes for requests from other accounts. No client can choose one."""


class QueryService(Service):
    """The micro service. It answers each query in a task of its own, so that a slow query does not delay the others."""

    def __init__(self, client: Client, subjects: Subjects, reply_prefix: str, answer: QueryHandler) -> None:
        super().__init__(
            client,
            ServiceConfig(
                name="timer-service",
                version=version("timer-service"),
                description="Queries about timers, signals, runs and buried events.",
            ),
        )
        self._subjects = subjects
        self._reply_prefix = reply_prefix
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._ignored = 0

    async def serve(self, names: Sequence[str]) -> None:
        """Start to answer the named queries."""
        await self.start()
        for name in names:
            subject = self._subjects.pattern(Kind.QUERY, name)
            await self.add_endpoint(EndpointConfig(name=name, subject=subject, handler=self._receive))

    async def stop(self) -> None:
        """Stop to answer. Queries without an answer stay without one."""
        for task in self._tasks:
            task.cancel()
        await super().stop()

    async def _receive(self, request: Request) -> None:
        """Start to answer a request. The driver reads the next request of this name when this method returns."""
        reply_to = request._msg.reply  # noqa: SLF001 - the driver has no public access to it
        if not may_answer(reply_to, self._reply_prefix):
            self._ignore()
            return
        address = self._subjects.address(Kind.QUERY, request.subject)
        # Without the request: its headers can be much larger than its body.
        task = asyncio.create_task(self._reply(reply_to, address.message, address.tenant, request.data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ignore(self) -> None:
        self._ignored += 1
        if self._ignored & (self._ignored - 1) == 0:  # 1, 2, 4, 8: a flood of queries must not flood the log
            log.warning("queries ignored: their reply subjects are not inboxes", extra={"count": self._ignored})

    async def _reply(self, to: str, name: str, tenant: str, body: bytes) -> None:
        async def send(reply: QueryReply) -> None:
            try:
                await self._client.publish(to, reply.body, headers=error_headers(reply))
            except (nats.errors.Error, ValueError) as error:  # ValueError: a header that the driver refuses
                log.warning("could not send the reply to a query", extra={"query": name, "reason": error_text(error)})

        await self._answer(name, tenant, body, send)


def may_answer(reply_to: str, reply_prefix: str) -> bool:
    """Return whether the service may send a reply to a query to this subject."""
    return may_reply_to(reply_to, reply_prefix, _IMPORTED_REPLY_PREFIX)


def error_headers(reply: QueryReply) -> dict[str, str] | None:
    """Return the headers of a reply: those of a micro service if it is an error."""
    return None if reply.code is None else {ERROR_CODE_HEADER: reply.code, ERROR_HEADER: reply.message}


async def serve_queries(
    client: Client, subjects: Subjects, reply_prefix: str, names: Sequence[str], answer: QueryHandler
) -> Service:
    """Start to answer queries. Instances share the requests. Requests that do not reply to an inbox are ignored."""
    service = QueryService(client, subjects, reply_prefix, answer)
    await service.serve(names)
    # The driver sends a flush before its buffered messages. After the second flush the server has the subscriptions.
    await client.flush()
    await client.flush()
    return service
