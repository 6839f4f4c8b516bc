"""Commands and questions over one connection, addressed as the contracts say."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nats.aio.client import Client

from timer_service.client.arguments import check_tenant, write_json
from timer_service.client.asking import ask
from timer_service.client.errors import NoAnswerError, QueryError
from timer_service.client.sending import Command, Sender
from timer_service.client.views import Outcome
from timer_service.core.message import kebab

_NOT_FOUND = "NOT_FOUND"
_ENVELOPE_ALLOWANCE = 1024  # the headers of a command


class Link:
    """What the client stands on."""

    def __init__(self, connection: Client, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self.sender = Sender(connection)

    def command(self, message_type: str, tenant: str, fields: Mapping[str, Any]) -> Command:
        """Make a command of its payload's fields. Raises ValueError when the broker would not take it."""
        command_id = secrets.token_hex(16)
        body = write_json({"id": command_id, "type": message_type, "tenantId": check_tenant(tenant), "payload": fields})
        if len(body) + _ENVELOPE_ALLOWANCE > self._connection.max_payload:
            raise ValueError(f"data must be smaller: the command has {len(body)} bytes, more than the broker takes")
        return Command(command_id, f"{self._prefix}.cmd.v1.{tenant}.{kebab(message_type)}", body)

    async def send(self, command: Command, timeout_seconds: float) -> Outcome:
        """Send one command and wait for its outcome; raise what came instead."""
        (ended,) = await self.sender.send([command], timeout_seconds)
        if isinstance(ended, Outcome):
            return ended
        raise ended

    async def ask(self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float) -> Any:
        """Return the answer to a query."""
        subject = f"{self._prefix}.qry.v1.{check_tenant(tenant)}.{query}"
        return await ask(self._connection, subject, question, timeout_seconds)

    async def find(self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float) -> Any:
        """Return the answer to a query, None when there is no such thing."""
        try:
            return await self.ask(tenant, query, question, timeout_seconds)
        except QueryError as error:
            if error.code == _NOT_FOUND:
                return None
            raise

    async def pages(
        self, tenant: str, query: str, question: Mapping[str, Any], name: str, timeout_seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Iterate over what all pages of a query hold under `name`."""
        while True:
            page = await self.ask(tenant, query, question, timeout_seconds)
            for view in page[name]:
                yield view
            if "cursor" not in page:
                return
            question = {**question, "cursor": page["cursor"]}

    async def events(self, tenant: str, message: str) -> AsyncIterator[dict[str, Any]]:
        """Iterate over events as they are published from now on."""
        subscription = await self._connection.subscribe(f"{self._prefix}.evt.v1.{tenant}.{message}")
        try:
            # The driver sends a flush ahead of what it holds back: only the second one follows the subscription.
            await self._connection.flush()
            await self._connection.flush()
            async for each in subscription.messages:
                event: dict[str, Any] = json.loads(each.data)
                yield event
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()
        raise NoAnswerError("the connection to the broker has ended")
