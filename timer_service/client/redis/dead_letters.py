"""The dead letters in the stream of dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from timer_service.client.errors import NoAnswerError
from timer_service.client.models import DeadLetter
from timer_service.core.values.address import Kind
from timer_service.redis_client import ERRORS, Keys, RedisClient, instant_of, reason_of

_READ = 100
_PARTS = {b"tenant", b"type", b"id", b"body"}
_NUMBER_BITS = 20
"""The part of a sequence for the number of an entry within its millisecond."""


class DeadLetterStream:
    """Reads the stream of dead letters. The sequence of a dead letter is made of its id, `<milliseconds>-<number>`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._key = keys.stream(Kind.DEAD_LETTER)

    async def list(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """Return the newest dead letters of a tenant or of all, newest first, without headers and bodies."""
        letters: list[DeadLetter] = []
        end = "+" if before is None else f"({_entry_id(before)}"
        while len(letters) < limit:
            entries = await self._range(end)
            letters += [each for each in map(_letter, entries) if tenant in {"*", each.tenant}]
            if len(entries) < _READ:
                break
            end = f"({entries[-1][0].decode()}"
        return letters[:limit]

    async def get(self, sequence: int) -> DeadLetter | None:
        """Return a dead letter with its headers and its body, or None."""
        entry_id = _entry_id(sequence)
        for entry in await self._range(entry_id, entry_id):
            fields = entry[1]
            headers = {_text(name): _text(value) for name, value in fields.items() if name not in _PARTS}
            return replace(
                _letter(entry), headers=headers, body=fields.get(b"body", b"").decode(errors="backslashreplace")
            )
        return None

    async def _range(self, end: str, start: str = "-") -> Any:
        """Return entries with their ids, newest first."""
        try:
            return await self._client.xrevrange(self._key, end, start, _READ)
        except ERRORS as error:
            raise NoAnswerError(
                f"the stream {self._key} cannot be read: {reason_of(error)}; it needs the login of the operator"
            ) from error


def _letter(entry: tuple[bytes, Mapping[bytes, bytes]]) -> DeadLetter:
    """Return a dead letter without its headers and its body."""
    entry_id, fields = entry
    milliseconds, number = map(int, entry_id.split(b"-"))
    text = {_text(name): _text(value) for name, value in fields.items() if name != b"body"}
    source = text.get("Timer-Source-Sequence", "")
    return DeadLetter(
        sequence=milliseconds << _NUMBER_BITS | number,
        tenant=text.get("tenant", ""),
        message=text.get("type", ""),
        code=text.get("Timer-Error-Code", ""),
        reason=text.get("Timer-Error-Message", ""),
        stored_at=instant_of(milliseconds),
        source_sequence=int(source) if source.isdecimal() else 0,
        size=len(fields.get(b"body", b"")),
        headers={},
    )


def _entry_id(sequence: int) -> str:
    """Return the id of the entry with a sequence."""
    return f"{sequence >> _NUMBER_BITS}-{sequence & (1 << _NUMBER_BITS) - 1}"


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
