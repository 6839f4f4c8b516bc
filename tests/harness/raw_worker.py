"""A worker of workflows that speaks the protocol itself, without the SDK, as a client in another language does."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from nats.aio.client import Client

from tests.harness.processes import body
from timer_service.core.values.address import kebab


async def start_workflows(connection: Client, ids: Sequence[str], tenant: str = "acme", **fields: Any) -> None:
    """Publish a StartWorkflow for each id. Return when the broker has stored them."""
    js = connection.jetstream()
    commands = [
        body("StartWorkflow", tenant, {"workflowId": each, "type": "order", "input": {"id": each}, **fields})
        for each in ids
    ]
    subject = f"timer.cmd.v1.{tenant}.{kebab('StartWorkflow')}"
    for start in range(0, len(commands), 500):
        await asyncio.gather(*(js.publish(subject, each, timeout=20) for each in commands[start : start + 500]))


class RawWorker:
    """Sends the requests of one worker."""

    def __init__(
        self, connection: Client, *, tenant: str = "acme", types: Sequence[str] = ("order",), slots: int = 100
    ) -> None:
        self.id = token_hex(4)
        self._connection = connection
        self._tenant = tenant
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._poll = {"workerId": self.id, "types": list(types), "slots": slots}

    async def request(self, name: str, *, timeout: float = 15, **fields: Any) -> Any:  # noqa: ASYNC109
        """Send a request. Return its reply. Raises `nats.errors` if nobody answers."""
        subject = f"timer.wrk.v1.{self._tenant}.{name}"
        reply = await self._connection.request(subject, json.dumps(fields).encode(), timeout=timeout)
        return json.loads(reply.data)

    async def poll(self, wait_ms: int = 5000, **fields: Any) -> list[Mapping[str, Any]]:
        """Ask for tasks. Return them."""
        reply = await self.request("poll-tasks", **{**self._poll, "waitMs": wait_ms, **fields})
        tasks: list[Mapping[str, Any]] = reply["tasks"]
        return tasks

    async def report(
        self,
        task: Mapping[str, Any],
        then: Mapping[str, Any],
        *,
        timeout: float = 15,  # noqa: ASYNC109 - of the request
        repeats: bool = False,
        **fields: Any,
    ) -> str:
        """Report about a task, or repeat the last report. Return the outcome, or the code of an error."""
        workflow, token = held = task["workflowId"], task["token"]
        self._numbers[held] += not (repeats and held in self._numbers)
        report = {"workflowId": workflow, "token": token, "number": self._numbers[held], "then": then, **fields}
        reply = await self.request("report-tasks", timeout=timeout, workerId=self.id, reports=[report])
        outcome: str = reply["error"]["code"] if "error" in reply else reply["reports"][0]["outcome"]
        return outcome


def complete(result: Any = None) -> dict[str, Any]:
    return {"action": "complete", "result": result}
