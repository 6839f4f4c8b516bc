"""The service as a worker sees it, in memory: the plainest form of the worker protocol (docs/workflows.md)."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from timer_service.client.errors import NoAnswerError, QueryError

Json = dict[str, Any]
_INLINE_EFFECTS = 50
_CLOCK_STEP = 0.001
"""A timer of a loop can fire this much before its instant."""


@dataclass
class Row:
    """A workflow."""

    id: str
    type: str
    input: Any
    queue: str = "default"
    max_attempts: int = 5
    status: str = "waiting"
    available_at: float = 0
    token: str = ""
    lease_until: float = 0
    lease_seconds: float = 0
    settled_by: str = ""
    report_number: int = 0
    attempt: int = 0
    blocks: int = 0
    effects: dict[str, Json] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    messages: list[tuple[str, Any]] = field(default_factory=list)
    end: Json = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.status in {"waiting", "running", "parked"}

    @property
    def seen(self) -> list[str]:
        """The keys of the effects with a number, in order."""
        numbered = [each for each in self.effects.values() if "seq" in each]
        return [each["key"] for each in sorted(numbered, key=lambda each: each["seq"])]


class MemoryService:
    """A service in memory, on the clock of the event loop. Failed steps are tried again after `retry_seconds`.

    `fault` is asked before and after each request; it returns whether the request, or its reply, is lost.
    """

    def __init__(self, *, retry_seconds: float = 0.5) -> None:
        self.rows: dict[str, Row] = {}
        self.requests: list[tuple[str, bytes]] = []
        self.outcomes: list[str] = []
        self.fault: Callable[[str], bool] = lambda _: False
        self.refusal: QueryError | None = None
        self.reports_without_effect = 0
        self._retry_seconds = retry_seconds
        self._tokens = 0
        self._polls: dict[str, int] = {}
        self._changed = asyncio.Event()

    # Users

    def start(self, workflow_id: str, kind: str, data: Any = None, **more: Any) -> Row:
        row = self.rows[workflow_id] = Row(workflow_id, kind, data, **more)
        self._changed.set()
        return row

    def send(self, workflow_id: str, name: str, data: Any = None) -> None:
        row = self.rows[workflow_id]
        row.messages.append((name, data))
        self._end_waits(row)
        if row.status in {"parked", "waiting"} and self._over(row):
            row.status, row.available_at = "waiting", self._now()
        self._changed.set()

    def cancel(self, workflow_id: str) -> None:
        row = self.rows[workflow_id]
        row.status, row.token = "cancelled", ""
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, at most an hour. The longer it takes, the less often this method looks."""
        began = self._now()
        async with asyncio.timeout(3600):
            while not condition():
                await asyncio.sleep(0.01 + (self._now() - began) / 1000)

    async def until_ended(self, *workflow_ids: str) -> None:
        """Wait until these workflows have ended, or all of them."""
        rows = [self.rows[each] for each in workflow_ids or self.rows]
        await self.until(lambda: not any(row.is_open for row in rows))

    # The port

    async def request(self, name: str, body: bytes, timeout_seconds: float) -> Mapping[str, Any]:
        self.requests.append((name, body))
        await asyncio.sleep(0.001)
        if self.fault(f"request {name}"):
            await asyncio.sleep(timeout_seconds)
            raise NoAnswerError("the request is lost")
        if self.refusal is not None:
            raise self.refusal
        answer = {"poll-tasks": self._poll, "report-tasks": self._report, "renew-tasks": self._renew}
        asked = json.loads(body)
        assert timeout_seconds > asked.get("waitMs", 0) / 1000, "the poll is held longer than its worker waits"
        reply = self._page(asked) if name == "get-effects" else await answer[name](asked)
        if self.fault(f"reply {name}"):
            await asyncio.sleep(timeout_seconds)
            raise NoAnswerError("the reply is lost")
        copy: Json = json.loads(json.dumps(reply))
        return copy

    async def _poll(self, asked: Json) -> Json:
        until = self._now() + asked["waitMs"] / 1000
        self._polls[asked["workerId"]] = self._polls.get(asked["workerId"], 0) + 1
        number = self._polls[asked["workerId"]]
        if not asked["slots"]:
            self._changed.set()
            return {"tasks": []}
        while True:
            claimable = [row for row in self.rows.values() if self._is_claimable(row, asked)]
            tasks = [self._claim(row, asked) for row in claimable[: asked["slots"]]]
            if tasks or self._now() >= until or self._polls[asked["workerId"]] > number:
                return {"tasks": tasks}
            self._changed.clear()
            due = [row.available_at for row in self.rows.values() if row.status == "waiting"]
            due += [row.lease_until for row in self.rows.values() if row.status == "running"]
            soonest = min([until, *(at for at in due if at > self._now())])
            try:
                async with asyncio.timeout(max(soonest - self._now(), _CLOCK_STEP)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _is_claimable(self, row: Row, asked: Json) -> bool:
        if row.type not in asked["types"] or row.queue != asked["queue"]:
            return False
        self._end_waits(row)
        if row.status == "running":
            return row.lease_until <= self._now()
        return row.status == "waiting" and row.available_at <= self._now()

    def _claim(self, row: Row, asked: Json) -> Json:
        self._tokens += 1
        row.status, row.token, row.attempt = "running", f"{self._tokens:016x}", row.attempt + 1
        row.lease_seconds, row.report_number = asked["leaseMs"] / 1000, 0
        row.lease_until = self._now() + row.lease_seconds
        views = self._views(row)
        return {
            "workflowId": row.id,
            "type": row.type,
            "token": row.token,
            "attempt": row.attempt,
            "input": row.input,
            "startedAt": "2026-11-21T09:00:00.000Z",
            "effects": views[:_INLINE_EFFECTS],
            **({"cursor": str(_INLINE_EFFECTS)} if len(views) > _INLINE_EFFECTS else {}),
        }

    def _views(self, row: Row) -> list[Json]:
        seen = [row.effects[key] for key in row.seen]
        unseen = [each for _, each in sorted(row.effects.items()) if "seq" not in each]
        opened = {key: max(round((at - self._now()) * 1000), 0) for key, at in row.due.items()}
        return [
            {**each, **({"startInMs": opened[each["key"]]} if is_open_step(each) and each["key"] in opened else {})}
            for each in (*seen, *unseen)
        ]

    def _page(self, asked: Json) -> Json:
        row, start = self.rows[asked["workflowId"]], int(asked["cursor"])
        if row.token != asked["token"]:
            raise QueryError("NOT_FOUND", "the task is not this worker's")
        views = self._views(row)
        more = {"cursor": str(start + _INLINE_EFFECTS)} if len(views) > start + _INLINE_EFFECTS else {}
        return {"effects": views[start : start + _INLINE_EFFECTS], **more}

    async def _renew(self, asked: Json) -> Json:
        lost, over = [], []
        for held in asked["tasks"]:
            row = self.rows[held["workflowId"]]
            if row.token != held["token"]:
                lost.append(held)
                continue
            row.lease_until = self._now() + row.lease_seconds
            self._end_waits(row)
            if found := self._over(row):
                over.append({"workflowId": row.id, "token": row.token, "over": found})
        names = [{name: each[name] for name in ("workflowId", "token")} for each in lost]
        return {"lost": names, "tasks": over}

    async def _report(self, asked: Json) -> Json:
        replies = [self._apply(report) for report in asked["reports"]]
        self.outcomes += [each["outcome"] for each in replies]
        self._changed.set()
        return {"reports": replies}

    def _apply(self, report: Json) -> Json:
        row = self.rows[report["workflowId"]]
        reply: Json = {"workflowId": row.id, "outcome": "lost"}
        if row.settled_by == report["token"]:
            return reply | {"outcome": "unchanged"}
        if row.token != report["token"]:
            return reply
        if report["number"] < row.report_number:
            return reply | {"outcome": "unchanged"}
        row.report_number = report["number"]
        reply["failedSteps"] = [self._store_step(row, step) for step in report.get("steps", ()) if "error" in step]
        for step in report.get("steps", ()):
            if "error" not in step:
                done = {"status": "done", "result": step["result"], "failures": step["attempt"] - 1}
                self._store(row, {"key": step["key"], "kind": "step", **done})
        for seen in report.get("seen", ()):
            effect = row.effects[seen["key"]]
            assert effect.get("seq", seen["seq"]) == seen["seq"], f"another number for {seen}"
            assert effect["status"] != "open", f"an open effect was seen: {seen}"
            effect["seq"] = seen["seq"]
        assert [row.effects[key]["seq"] for key in row.seen] == list(range(1, len(row.seen) + 1)), "a gap"
        for wait in report.get("waits", ()):
            if wait["key"] not in row.effects:
                row.effects[wait["key"]] = {"key": wait["key"], "kind": wait["kind"], "status": "open"}
                if "ms" in wait:
                    row.due[wait["key"]] = self._now() + wait["ms"] / 1000
        self._end_waits(row)
        row.attempt, row.lease_until = 0, self._now() + row.lease_seconds
        return reply | self._settle(row, report["then"])

    def _settle(self, row: Row, then: Json) -> Json:
        match then["action"]:
            case "continue":
                return {"outcome": "recorded", "over": self._over(row)}
            case "park":
                opened = [key for key, each in row.effects.items() if each["status"] == "open"]
                assert opened or self._over(row), f"{row.id} parks without a wait"
                due = [row.due[key] for key in opened if key in row.due]
                ready = [{"key": key, "startInMs": 0} for key in due_steps(row) if row.due[key] <= self._now()]
                if self._over(row) or ready:
                    return {"outcome": "resumed", "over": self._over(row), "failedSteps": ready}
                row.status, row.available_at = ("waiting", min(due)) if due else ("parked", 0)
                outcome = "parked"
            case "release":
                delay = 5 if then["reason"] == "non_deterministic" else 0
                row.blocks += 1 if delay else 0
                row.status, row.available_at, outcome = "waiting", self._now() + delay, "released"
            case action:
                row.end = then
                row.status = outcome = {"complete": "completed", "fail": "failed"}[action]
        row.settled_by, row.token = row.token, ""
        return {"outcome": outcome}

    def _store(self, row: Row, effect: Json) -> None:
        known = row.effects.get(effect["key"])
        if known is not None and known["status"] != "open":
            self.reports_without_effect += 1
            assert {**known, "seq": 0, "failures": 0} == {**effect, "seq": 0, "failures": 0}, "a stored result changes"
            return
        row.effects[effect["key"]] = effect
        row.due.pop(effect["key"], None)

    def _store_step(self, row: Row, step: Json) -> Json:
        """Store a failed attempt, and return when the next one may start. A repeated report changes nothing."""
        key = step["key"]
        known = row.effects.get(key, {"failures": 0, "status": "open"})
        if step["attempt"] == known["failures"] + 1:
            most = step.get("retry", {}).get("maxAttempts", row.max_attempts)
            is_last = not step["retryable"] or step["attempt"] >= most
            effect = {"key": key, "kind": "step", "status": "open", "failures": step["attempt"]}
            if is_last:
                effect |= {"status": "failed", "error": step["error"]}
                row.due.pop(key, None)
            else:
                row.due[key] = self._now() + step.get("afterMs", self._retry_seconds * 1000) / 1000
            row.effects[key] = effect
        else:
            assert step["attempt"] == known["failures"], f"attempt {step} after {known}"
            self.reports_without_effect += 1
        if row.effects[key]["status"] != "open":
            return {"key": key}
        return {"key": key, "startInMs": max(round((row.due[key] - self._now()) * 1000), 0)}

    def _end_waits(self, row: Row) -> None:
        """End the waits that are over: a message is there, or their instant has come."""
        for effect in sorted(row.effects.values(), key=lambda each: row.due.get(each["key"], float("inf"))):
            if effect["status"] != "open" or effect["kind"] == "step":
                continue
            key = effect["key"]
            message = next((each for each in row.messages if each[0] == key.partition(":")[0]), None)
            if effect["kind"] == "message" and message is not None:
                row.messages.remove(message)
                effect |= {"status": "done", "result": message[1]}
            elif row.due.get(key, float("inf")) <= self._now():
                effect["status"] = "failed" if effect["kind"] == "message" else "done"

    def _over(self, row: Row) -> list[Json]:
        """Return the waits that are over and not seen."""
        waits = [each for each in row.effects.values() if each["kind"] != "step"]
        return [each for each in waits if each["status"] != "open" and "seq" not in each]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def is_open_step(effect: Json) -> bool:
    return bool(effect["kind"] == "step" and effect["status"] == "open")


def due_steps(row: Row) -> list[str]:
    """Return the keys of the open steps with an instant."""
    return [key for key in row.due if is_open_step(row.effects[key])]
