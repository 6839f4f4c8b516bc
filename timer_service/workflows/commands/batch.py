"""One batch of commands: the workflows that they name, what else they need to know, and what they change."""

from collections.abc import Sequence
from functools import partial

from timer_service.core.intake.batch import count_before, load_in_portions
from timer_service.core.ports.database import Transaction
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command
from timer_service.workflows import effect_store, store
from timer_service.workflows.commands.rules import Applied, Facts, key_of
from timer_service.workflows.effect import Effect, EffectKey, Effects
from timer_service.workflows.effect_store import StoredMessage
from timer_service.workflows.keys import UNUSED, KeyName, KeyUse, name_of
from timer_service.workflows.messages import RetryWorkflow, SendToWorkflow, StartWorkflow, WorkflowStatus
from timer_service.workflows.workflow import Key, Workflow, unstarted


class Batch:
    """The rows of one batch of commands. Each command sees the effects of the earlier ones."""

    def __init__(self, before: dict[Key, Workflow], commands: Sequence[Command]) -> None:
        self.commands = commands
        """The commands whose workflows were loaded."""
        self.before = before
        self.after = dict(before)
        self._uses: dict[KeyName, KeyUse] = {}
        """How the concurrency keys are used of workflows that may start or continue."""
        self._ids: set[tuple[Key, str]] = set()
        self._awaited: set[tuple[Key, str]] = set()
        self._last: dict[Key, Effect] = {}
        self._messages: list[StoredMessage] = []
        self._steps: dict[Key, dict[EffectKey, Effect]] = {}

    @classmethod
    async def load(cls, tx: Transaction, commands: Sequence[Command]) -> "Batch":
        """Lock and load what the first commands need: as many as one transaction has room for. Leave out the others."""
        keys = list(map(key_of, commands))
        before, left = await load_in_portions(keys, partial(store.load, tx), _characters)
        kept = commands[: count_before(keys, left)]
        batch = cls(before, kept)
        await batch._load_uses(tx, kept)
        await batch._load_mail(tx, kept)
        await batch._load_steps(tx, kept)
        return batch

    async def _load_uses(self, tx: Transaction, commands: Sequence[Command]) -> None:
        """Lock the concurrency keys of workflows that may start or continue, and find how they are used."""
        wanted: set[KeyName] = set()
        for command in commands:
            payload, found = command.payload, self.before.get(key_of(command))
            if isinstance(payload, StartWorkflow) and payload.concurrency_key is not None:
                wanted.add(KeyName(payload.tenant_id, payload.concurrency_key))
            elif isinstance(payload, RetryWorkflow) and (known := name_of(found)) is not None:
                wanted.add(known)
        self._uses = await store.lock_uses(tx, wanted, changes=len(commands))

    async def _load_mail(self, tx: Transaction, commands: Sequence[Command]) -> None:
        """Find which message ids are known, and for which messages a workflow waits."""
        messages = [(key_of(each), each.payload) for each in commands if isinstance(each.payload, SendToWorkflow)]
        stored = [(key, message) for key, message in messages if key in self.before]
        ids = {(key, message.message_id) for key, message in stored if message.message_id is not None}
        self._ids = await effect_store.find_message_ids(tx, ids)
        self._awaited = await effect_store.find_awaited(tx, {(key, message.name) for key, message in stored})

    async def _load_steps(self, tx: Transaction, commands: Sequence[Command]) -> None:
        """Load the effects that failed workflows got last."""
        retried = {key_of(each) for each in commands if isinstance(each.payload, RetryWorkflow)}
        found = [self.before[key] for key in retried & self.before.keys()]
        failed = {each.key: each.seen for each in found if each.status is WorkflowStatus.FAILED and each.seen}
        self._last = await effect_store.find_last(tx, failed)

    def facts(self, key: Key, command: Command) -> Facts:
        """Return what a command needs to know in addition to its workflow."""
        match command.payload:
            case SendToWorkflow() as payload:
                is_known = payload.message_id is not None and (key, payload.message_id) in self._ids
                return Facts(is_known=is_known, is_awaited=(key, payload.name) in self._awaited)
            case StartWorkflow() as payload:
                wanted = payload.concurrency_key
                name = None if wanted is None else KeyName(payload.tenant_id, wanted)
                return Facts(self._use(name))
            case RetryWorkflow():
                return Facts(self._use(name_of(self.after.get(key))), last=self._last.get(key))
            case _:
                return Facts()

    def _use(self, name: KeyName | None) -> KeyUse:
        """Return how a concurrency key is used after the commands so far."""
        return UNUSED if name is None else self._uses[name]

    def take(self, key: Key, command: Command, applied: Applied, now: int) -> None:
        """Keep what a command has changed, for the commands after it and for `save`."""
        workflow, payload = applied.workflow, command.payload
        if key not in self.after and workflow == unstarted(key, now):  # unknown as before, so no row is inserted
            return
        if (name := name_of(workflow)) in self._uses:
            self._uses[name] = self._uses[name].after(self.after.get(key), workflow)
        self.after[key] = workflow
        if applied.message is not None and isinstance(payload, SendToWorkflow):
            data = None if payload.data is None else dump_data(payload.data)
            self._messages.append(StoredMessage(key, applied.message, payload.message_id, data))
            if payload.message_id is not None:
                self._ids.add((key, payload.message_id))
        if applied.effect is not None:
            self._steps[key] = {applied.effect.key: applied.effect}

    async def save(self, tx: Transaction, now: int) -> None:
        """Write what the commands have changed."""
        await store.save(tx, self.before, self.after)
        await effect_store.insert_messages(tx, self._messages)
        none_before: dict[Key, Effects] = {key: {} for key in self._steps}  # so each step differs and is written
        await effect_store.save(tx, none_before, self._steps, now)


def _characters(workflow: Workflow) -> int:
    """Return how much data a workflow has that is read, or written again if a RetryWorkflow continues it."""
    retry = "" if workflow.definition is None else workflow.definition.retry
    rewritten = 0 if workflow.failure_code is None else workflow.input_bytes
    return sum(len(text or "") for text in (workflow.last_error, workflow.reason, retry)) + rewritten
