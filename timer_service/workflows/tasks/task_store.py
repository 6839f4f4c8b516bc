"""Loads the tasks that workers' requests name, and saves what the requests have changed: a few statements for all."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from timer_service.core.events import outbox
from timer_service.core.ports.database import Reader, Transaction
from timer_service.core.values.paging import PAGE_BYTES, read_page
from timer_service.core.values.stored_json import RawJson, read_stored, write_object
from timer_service.workflows import effect_store, store
from timer_service.workflows.effect import Effect, EffectKey, Effects, message_names
from timer_service.workflows.effect_store import Cursor
from timer_service.workflows.events import events_of
from timer_service.workflows.keys import KEY_LOOP, frees_key
from timer_service.workflows.messages import MAX_EFFECTS
from timer_service.workflows.protocol import REPLY_BYTES, EffectKind, EffectStatus
from timer_service.workflows.tasks.report import TaskState
from timer_service.workflows.workflow import Key, Workflow

Tasks = Mapping[Key, TaskState]

_LOADED_EFFECT_BYTES = 2048
"""About how much memory an effect needs that is loaded, changed and saved. Its texts are not loaded."""


def loaded_bytes(effects: int) -> int:
    """Return about how much memory so many effects need that are loaded for a decision."""
    return effects * _LOADED_EFFECT_BYTES


class Wanted(NamedTuple):
    """What to load of a workflow, in addition to the effects that its function has not got."""

    effects: frozenset[EffectKey] = frozenset()
    """The effects that requests name."""
    messages: Mapping[str, int] = {}
    """How many messages of each name new waits can take."""


async def load(
    tx: Transaction, workflows: Mapping[Key, Workflow], wanted: Mapping[Key, Wanted]
) -> dict[Key, TaskState]:
    """Return the tasks of locked workflows. The wanted ones have the effects and messages that decisions need."""
    with_effects = [key for key in wanted if workflows[key].effects]
    unseen = await effect_store.find_unseen(tx, with_effects)
    named = [(key, each) for key in with_effects for each in wanted[key].effects if each not in unseen.get(key, {})]
    some = await effect_store.find_some(tx, named)
    effects = {key: {**some.get(key, {}), **unseen.get(key, {})} for key in with_effects}
    mail = await effect_store.next_messages(tx, _wanted_messages(workflows, effects, wanted))
    return {key: TaskState(each, effects.get(key, {}), mail.get(key, {})) for key, each in workflows.items()}


def _wanted_messages(
    workflows: Mapping[Key, Workflow], effects: Mapping[Key, Effects], wanted: Mapping[Key, Wanted]
) -> dict[tuple[Key, str], int]:
    """Return how many messages of each name the open and the new waits of workflows can take."""
    names = {
        key: message_names(effects.get(key, {}).values()) + Counter(each.messages)
        for key, each in wanted.items()
        if workflows[key].messages
    }
    return {(key, name): count for key, counts in names.items() for name, count in counts.items()}


async def save(tx: Transaction, before: Tasks, after: Tasks, now: int) -> Sequence[str]:
    """Write the tasks of `after` that differ from `before`. Return the loops to wake after the commit."""
    old, new = ({key: task.workflow for key, task in tasks.items()} for tasks in (before, after))
    await store.advance(tx, old, new)
    old_effects, new_effects = ({key: task.effects for key, task in tasks.items()} for tasks in (before, after))
    await effect_store.save(tx, old_effects, new_effects, now)
    events = events_of(old, new, now)
    await outbox.add(tx, events, now)
    return [*(["outbox"] if events else []), *([KEY_LOOP] if frees_key(new.values()) else [])]


def effect_view(effect: Effect, now: int) -> RawJson:
    """Return the view of an effect for a worker: the fields of `EffectView` that are not None.

    Instants are relative to `now`, because the worker's clock may be another one.
    """
    fields: dict[str, object] = {"key": effect.key.text, "kind": effect.kind, "status": effect.status}
    if effect.seq is not None:
        fields["seq"] = effect.seq
    if effect.failures:
        fields["failures"] = effect.failures
    if effect.kind is EffectKind.STEP and effect.status is EffectStatus.OPEN:
        fields["startInMs"] = max((effect.due_at or now) - now, 0)
    elif effect.status is EffectStatus.OPEN and effect.due_at is not None:
        fields["overInMs"] = max(effect.due_at - now, 0)
    return write_object(fields, {"result": read_stored(effect.result), "error": read_stored(effect.error)})


async def effects_page(
    reader: Reader, key: Key, after: Cursor, now: int, *, limit: int = MAX_EFFECTS, most_bytes: int = PAGE_BYTES
) -> RawJson:
    """Return a page of the effects of a workflow for a worker, and the cursor of the next one if there is one."""
    return await read_page(
        "effects",
        partial(effect_store.page, reader, key),
        after=after,
        limit=limit,
        view=partial(effect_view, now=now),
        cursor_of=effect_store.cursor_of,
        most_bytes=most_bytes,
    )


async def over_views(
    tx: Transaction, replies: Sequence[Mapping[Key, TaskState]], now: int
) -> list[dict[Key, list[RawJson]]]:
    """Return for the tasks of each reply the views of the waits that are over and that the functions have not got.

    Call it after they were saved. The next replies have those that have no room.
    """
    chosen = [_over(each) for each in replies]
    messages = [(key, each) for over in chosen for key, each in over if each.size and each.kind is EffectKind.MESSAGE]
    results = await effect_store.find_results(tx, {(key, each.key) for key, each in messages})
    found: list[dict[Key, list[RawJson]]] = []
    for over in chosen:
        views: dict[Key, list[RawJson]] = {}
        for key, effect in over:
            views.setdefault(key, []).append(effect_view(effect._replace(result=results.get((key, effect.key))), now))
        found.append(views)
    return found


def _over(tasks: Mapping[Key, TaskState]) -> list[tuple[Key, Effect]]:
    """Return the waits of tasks that are over, as many as a reply has room for."""
    room = REPLY_BYTES
    chosen: list[tuple[Key, Effect]] = []
    for key, task in tasks.items():
        for effect in sorted((each for each in task.effects.values() if each.is_over), key=attrgetter("key")):
            room -= effect_store.view_bytes(effect)
            if room < 0:
                return chosen
            chosen.append((key, effect))
    return chosen
