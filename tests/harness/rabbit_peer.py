"""A service as a client over RabbitMQ sees it: it answers by functions of the test."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.harness.waiting import until

Reply = Callable[[AbstractIncomingMessage], Mapping[str, Any] | None]


def scheduled(message: AbstractIncomingMessage) -> Mapping[str, Any]:
    return {"commandId": message.message_id, "outcome": "scheduled"}


class RabbitPeer:
    """Receives commands, queries and requests of workers."""

    def __init__(self, channel: AbstractChannel, prefix: str) -> None:
        self._channel = channel
        self._prefix = prefix
        self.commands: list[AbstractIncomingMessage] = []
        self.outcome: Reply = scheduled
        """The outcome of a command; None: no outcome."""
        self.answer: Reply = lambda _: {"error": {"code": "NOT_FOUND", "message": "no such timer"}}
        """The answer to a query or a request of a worker; None: no answer."""

    async def open(self) -> None:
        for kind in ("cmd", "qry", "wrk"):
            exchange = await self._channel.declare_exchange(f"{self._prefix}.{kind}", "topic", durable=True)
            queue = await self._channel.declare_queue(exclusive=True)
            await queue.bind(exchange, "#")
            await queue.consume(partial(self._receive, kind), no_ack=True)

    async def until_commands(self, number: int) -> None:
        await until(lambda: len(self.commands) >= number)

    async def reply(self, message: AbstractIncomingMessage, body: bytes) -> None:
        answer = aio_pika.Message(body, correlation_id=message.correlation_id)
        await self._channel.default_exchange.publish(answer, message.reply_to or "")

    async def fire(self, timer: str, *, tenant: str, kind: str = "due-time-reached") -> None:
        """Publish an event of the timer, whose id is its name."""
        at = "2026-11-21T09:00:00.000Z"
        fields = {"serviceCallId": timer, "dueAt": at, "reachedAt": at, "runId": timer, "status": "success"}
        names = {"due-time-reached": "DueTimeReached", "run-completed": "RunCompleted"}
        body = {
            "id": timer,
            "type": names[kind],
            "tenantId": tenant,
            "timestampMs": 1_795_240_000_000,
            "payload": {"tenantId": tenant, "data": None, "counts": {}, **fields},
        }
        exchange = await self._channel.get_exchange(f"{self._prefix}.evt", ensure=False)
        await exchange.publish(aio_pika.Message(json.dumps(body).encode()), f"{tenant}.{kind}")

    async def _receive(self, kind: str, message: AbstractIncomingMessage) -> None:
        if kind == "cmd":
            self.commands.append(message)
        reply = (self.outcome if kind == "cmd" else self.answer)(message)
        if reply is not None and message.reply_to:
            await self.reply(message, json.dumps(reply).encode())
