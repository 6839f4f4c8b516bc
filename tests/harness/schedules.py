"""Conversations about schedules with the schedules slice in this process."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from tests.harness.clock import ManualClock, iso
from tests.harness.conversation import Conversation
from tests.harness.in_process import InProcess, Options, exhaust
from tests.harness.memory_broker import MemoryBroker
from timer_service import workflows
from timer_service.app.slices import SCHEDULES
from timer_service.core.ports.database import Database
from timer_service.schedules.backfill.worker import BackfillWorker
from timer_service.schedules.firing.worker import FiringWorker
from timer_service.workflows.commands.slot_start import start_workflows


class ScheduleConversation(Conversation):
    """A conversation about `daily`, unless a test names another schedule."""

    fields: ClassVar = {"scheduleId": "daily"}

    async def put(self, schedule: str = "daily", **fields: Any) -> str:
        """Put a schedule and return the outcome. By default it has a slot each minute."""
        recurrence = {} if fields.keys() & {"cron", "every", "calendar"} else {"every": "PT1M"}
        return str((await self.request("PutSchedule", scheduleId=schedule, **recurrence, **fields))["outcome"])

    async def about(self, verb: str, schedule: str = "daily", **fields: Any) -> str:
        """Send a command about a schedule and return the outcome. `verb` is Pause, Resume, Delete or Trigger."""
        return str((await self.request(f"{verb}Schedule", scheduleId=schedule, **fields))["outcome"])

    async def events_of(self, message_type: str, schedule: str = "daily", tenant: str | None = None) -> list[Any]:
        """Return the published events of a type about a schedule, in order of publication."""
        events = [json.loads(each.body) for each in await self.stored(tenant)]
        about = [each for each in events if each["payload"].get("scheduleId") == schedule]
        return [each for each in about if each["type"] == message_type]

    async def fired(self, schedule: str = "daily", tenant: str | None = None) -> list[str]:
        """Return the slots of a schedule that fired, in order."""
        events = await self.events_of("ScheduleFired", schedule, tenant)
        return sorted(each["payload"]["slotAt"] for each in events if each["payload"]["cause"] == "slot")

    async def backfill(self, since: int, until: int, schedule: str = "daily", **fields: Any) -> str:
        """Send a BackfillSchedule for the slots in [`since`, `until`) and return the outcome."""
        span = {"from": iso(since), "to": iso(until)}
        return str((await self.request("BackfillSchedule", scheduleId=schedule, **span, **fields))["outcome"])

    async def backfilled(self, schedule: str = "daily", tenant: str | None = None) -> list[str]:
        """Return the slots of a schedule that were backfilled, in order of publication."""
        events = await self.events_of("ScheduleFired", schedule, tenant)
        return [each["payload"]["slotAt"] for each in events if each["payload"]["cause"] == "backfill"]

    async def ends(self, schedule: str = "daily", tenant: str | None = None) -> list[dict[str, Any]]:
        """Return how the backfills of a schedule ended: the payloads of their events, without the names."""
        events = await self.events_of("ScheduleBackfilled", schedule, tenant)
        names = {"tenantId", "scheduleId", "commandId"}
        return [{name: value for name, value in each["payload"].items() if name not in names} for each in events]

    async def view(self, schedule: str = "daily", **fields: Any) -> Any:
        """Return the reply to get-schedule."""
        return await self.ask("get-schedule", scheduleId=schedule, **fields)

    async def status(self, schedule: str = "daily") -> str:
        """Return the status of a schedule."""
        return str((await self.view(schedule))["status"])


class Schedules(ScheduleConversation, InProcess):
    """The schedules slice in this process."""

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, broker, clock, SCHEDULES, **options)
        self.worker = FiringWorker(self.parts, start_workflows)
        self.backfill_worker = BackfillWorker(self.parts, start_workflows)

    async def fire(self) -> None:
        """Fire the due slots, in as many passes as it takes, and publish their events."""
        await exhaust(self.worker, self.clock.now())
        await self.publish()

    async def fire_backfills(self, most: int = 100) -> int:
        """Fire portions of backfills and publish all events, until none is due. Return how many portions there were.

        `most` limits them.
        """
        await self.publish()
        for portions in range(most):
            if not (await self.backfill_worker.tick(self.clock.now())).done:
                return portions
            await self.publish()
        return most

    async def advance(self, **duration: float) -> None:
        """Advance the clock and fire what is due then."""
        self.clock.advance(**duration)
        await self.fire()

    async def row(self, schedule: str = "daily", tenant: str = "acme") -> dict[str, Any]:
        """Return the row of a schedule."""
        return await self.only_row("schedules", tenant_id=tenant, schedule_id=schedule)

    async def all_rows(self, table: str = "schedules") -> list[dict[str, Any]]:
        """Return every row of a table, in order of the keys."""
        return await self.rows(table)


class StartingSchedules(Schedules):
    """The schedules slice and the workflows slice. Schedules start workflows of the type `order`."""

    fields: ClassVar = {}

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, broker, clock, **options)
        routes = [self._route(each) for each in (SCHEDULES, workflows.SLICE)]
        self.reader = self.parts.reader(routes, self._wake_outbox)

    async def put_start(self, schedule: str = "daily", *, start: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """Put a schedule that starts workflows. `start` has more fields of them."""
        return await self.put(schedule, start={"type": "order", **(start or {})}, **fields)

    async def start(self, workflow: str, **fields: Any) -> str:
        """Start a workflow by a command and return the outcome."""
        fields = {"type": "order", **fields}
        return str((await self.request("StartWorkflow", workflowId=workflow, **fields))["outcome"])

    async def about_workflow(self, verb: str, workflow: str, **fields: Any) -> str:
        """Send another command about a workflow and return the outcome."""
        return str((await self.request(f"{verb}Workflow", workflowId=workflow, **fields))["outcome"])

    async def workflows(self, tenant: str = "acme") -> dict[str, str]:
        """Return the status of each workflow of a tenant by its id."""
        rows = await self.rows("workflows")
        return {row["workflow_id"]: row["status"] for row in rows if row["tenant_id"] == tenant}

    async def workflow_rows(self) -> list[dict[str, Any]]:
        """Return every row of a workflow, in order of the keys."""
        return await self.all_rows("workflows")

    async def skipped(self, schedule: str = "daily") -> list[tuple[str, str]]:
        """Return the slots that started no workflow, with the reasons."""
        events = await self.events_of("ScheduleSkipped", schedule)
        return sorted((each["payload"]["slotAt"], each["payload"]["reason"]) for each in events)
