"""Commands that were delivered before the one that makes their run or their job known, kept until that comes."""

from collections.abc import Iterable
from typing import Any

from timer_service.core.database import Row, Transaction
from timer_service.core.message import Command, Position, Trace
from timer_service.runs.messages import ReportJobStatus, ResolveGroup
from timer_service.runs.rules import RunKey
from timer_service.runs.store import _SQL

_PAYLOADS = {payload.type: payload for payload in (ResolveGroup, ReportJobStatus)}


async def find(tx: Transaction, keys: Iterable[RunKey]) -> list[tuple[RunKey, Command]]:
    """Read what is kept for runs."""
    rows = await tx.fetch_each(_SQL["early"], [key._asdict() for key in keys])
    return [(RunKey(row["tenant_id"], row["run_id"]), _command(row)) for row in rows]


async def keep(tx: Transaction, commands: Iterable[tuple[RunKey, Command]]) -> None:
    """Keep commands for their runs; one that is kept already stays."""
    await tx.executemany(_SQL["keep_early"], [_parameters(key, command) for key, command in commands])


async def forget(tx: Transaction, positions: Iterable[tuple[RunKey, Position]]) -> None:
    """Keep commands no longer that are applied."""
    await tx.executemany(_SQL["forget_early"], [_place(key, position) for key, position in positions])


def _command(row: Row) -> Command:
    return Command(
        id=row["command_id"],
        payload=_PAYLOADS[row["command_type"]].model_validate_json(row["payload"]),
        position=Position(row["position_epoch"], row["position_sequence"]),
        correlation_id=row["correlation_id"],
        trace=Trace(row["traceparent"], row["tracestate"]),
        reply_to=None,
    )


def _parameters(key: RunKey, command: Command) -> dict[str, Any]:
    return {
        **_place(key, command.position),
        "command_id": command.id,
        "command_type": command.payload.type,
        "payload": command.payload.model_dump_json(exclude_unset=True),
        "correlation_id": command.correlation_id,
        "traceparent": command.trace.traceparent,
        "tracestate": command.trace.tracestate,
    }


def _place(key: RunKey, position: Position) -> dict[str, Any]:
    return {**key._asdict(), "position_epoch": position.epoch, "position_sequence": position.sequence}
