"""The streams of the service: created, updated or only checked."""

from datetime import timedelta
from enum import Enum
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import (
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.errors import StartError
from timer_service.core.health import HEALTHY, Health
from timer_service.core.message import Kind

_MAX_AGE = {
    Kind.COMMAND: timedelta(days=7),
    Kind.EVENT: timedelta(days=7),
    Kind.DEAD_LETTER: timedelta(days=30),
}
STORED_KINDS = tuple(_MAX_AGE)
"""The kinds of messages that streams store."""


async def prepare_streams(
    js: JetStreamContext, subjects: Subjects, *, manage: bool, retention: timedelta | None
) -> dict[Kind, StreamInfo]:
    """Create or update every stream, or only check it if not `manage`. Raises `StartError` if one is wrong."""
    found = {kind: await prepare_stream(js, subjects, kind, manage=manage) for kind in STORED_KINDS}
    if (reason := check_age(found[Kind.COMMAND], retention).reason) is not None:
        raise StartError(reason)
    return found


async def prepare_stream(js: JetStreamContext, subjects: Subjects, kind: Kind, *, manage: bool) -> StreamInfo:
    """Create or update one stream, or only check it if not `manage`. Raises `StartError` if it is wrong."""
    name = subjects.stream(kind)
    try:
        try:
            info = await js.stream_info(name)
        except NotFoundError:
            if not manage:
                raise StartError(f"stream {name} is missing: create it, or set TIMER_MANAGE_STREAMS=true") from None
            return await js.add_stream(_wanted(subjects, kind))
        missing = _missing(info.config, subjects, kind)
        if missing and manage:
            return await js.update_stream(info.config.evolve(**missing))
    except APIError as error:
        raise StartError(f"stream {name} cannot be set up: {error.description}") from error
    missing.pop("allow_atomic", None)  # without it publishing works, but is slower
    if missing:
        needed = ", ".join(f"{field} = {_text(value)}" for field, value in missing.items())
        raise StartError(f"stream {name} needs {needed}: change the stream, or set TIMER_MANAGE_STREAMS=true")
    return info


def check_age(commands: StreamInfo, retention: timedelta | None) -> Health:
    """Return whether the stream of commands keeps them for at most `retention`. None: for any time."""
    kept = timedelta(seconds=commands.config.max_age or 0)
    if retention is None or timedelta() < kept <= retention:
        return HEALTHY
    return Health.down(
        f"the broker keeps commands {f'for {kept}' if kept else 'forever'}, longer than TIMER_RETENTION_DAYS="
        f"{retention / timedelta(days=1):g}: a command that is delivered again could fire a deleted timer. "
        "Set a shorter max_age on the command stream, or a longer retention"
    )


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def _wanted(subjects: Subjects, kind: Kind) -> StreamConfig:
    return StreamConfig(
        name=subjects.stream(kind),
        subjects=[subjects.pattern(kind)],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # a full stream refuses messages; `old` would delete stored ones
        max_age=_MAX_AGE[kind].total_seconds(),
        duplicate_window=120,
        allow_atomic=True,
    )


def _missing(found: StreamConfig, subjects: Subjects, kind: Kind) -> dict[str, Any]:
    """Return the fields that an existing stream must change. The operator owns its limits, replicas and ages."""
    wanted = _wanted(subjects, kind)
    missing: dict[str, Any] = {}
    if not set(wanted.subjects or ()) <= set(found.subjects or ()):
        missing["subjects"] = sorted({*(found.subjects or ()), *(wanted.subjects or ())})
    if found.discard != wanted.discard:
        missing["discard"] = wanted.discard
    if wanted.allow_atomic and not found.allow_atomic:
        missing["allow_atomic"] = True
    return missing
