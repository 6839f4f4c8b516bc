"""The NATS client for queries: it refuses those that are too many before the driver spends time on them.

Any tenant may send faster than the service reads. What is not read waits in the server, and queries of other tenants
wait behind it.
"""

from functools import lru_cache
from typing import Any

from timer_service.adapters.nats.driver import GuardedClient, GuardedParser
from timer_service.adapters.nats.headers import decode_text
from timer_service.adapters.nats.queries import error_headers, may_answer
from timer_service.core.broker import QueryFilter, QueryReply
from timer_service.core.turns import Turns

_END = b"\r\n"
_TOKENS = 5
"""How many tokens the line `MSG subject sid reply size` has."""
_MOST_UNSENT = 256 * 1024
_MOST_AT_ONCE = 100
"""How many queries are refused before other tasks may run."""


class AskedClient(GuardedClient):
    """A client to which tenants send queries."""

    def __init__(self, prefix: bytes, reply_prefix: str, refuse: QueryFilter) -> None:
        """`prefix`: of the subjects of queries, before the tenant. `reply_prefix`: of the inboxes of the service."""
        super().__init__()
        self.prefix = prefix
        self._reply_prefix = reply_prefix
        self._refuse = refuse
        self._ps = _AskedParser(self)

    def refusal_of(self, subject: bytes, reply: bytes) -> bytes | None:
        """Return the protocol bytes that refuse a query, which may be none; None if the query is not refused."""
        tenant, _, name = decode_text(subject[len(self.prefix) :]).partition(".")
        if (refusal := self._refuse(name, tenant)) is None:
            return None
        to = decode_text(reply)
        return b"HPUB %b%b" % (to.encode(), _after_subject(refusal)) if may_answer(to, self._reply_prefix) else b""

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if subject.startswith(self.prefix):
            if not reply:
                return  # there is no inbox for an answer
            if (refusal := self.refusal_of(subject, reply)) is not None:
                await self.send_refusals(refusal)
                return
        await super()._process_msg(sid, subject, reply, data, headers)

    async def send_refusals(self, refusals: bytes) -> None:
        """Send the protocol bytes of refusals, or drop them if the server takes too little of what is sent.

        Waiting for the server here would end the reading: a tenant that does not read replies could stop all others.
        """
        if refusals and self.is_connected and self._pending_data_size < _MOST_UNSENT:
            await self.send(refusals)


class _AskedParser(GuardedParser):
    """Refuses whole queries. Everything else is left to the guarded parser."""

    nc: AskedClient

    async def take_whole_messages(self, turns: Turns) -> None:
        """Refuse the queries at the beginning of the buffer, up to the first that is not refused."""
        if not self.buf.startswith(b"MSG " + self.nc.prefix):
            return
        read = bytes(self.buf)
        start = 0
        refusals: list[bytes] = []
        while len(refusals) < _MOST_AT_ONCE and (found := self._find_refused(read, start)) is not None:
            refusal, start = found
            refusals.append(refusal)
        del self.buf[:start]  # before anything is awaited: a lost connection empties the buffer
        await self.nc.send_refusals(b"".join(refusals))
        await turns.take(start)

    def _find_refused(self, read: bytes, start: int) -> tuple[bytes, int] | None:
        """Return the refusal of the query that begins at `start`, and where the next one begins; or None."""
        if (line_end := read.find(_END, start)) < 0:
            return None
        tokens = read[start:line_end].split(b" ")
        if len(tokens) != _TOKENS or tokens[0] != b"MSG" or not tokens[1].startswith(self.nc.prefix):
            return None
        try:
            end = line_end + len(_END) + int(tokens[4])
        except ValueError:
            return None
        if end + len(_END) > len(read) or (refusal := self.nc.refusal_of(tokens[1], tokens[3])) is None:
            return None
        return refusal, end + len(_END)


@lru_cache(100)
def _after_subject(reply: QueryReply) -> bytes:
    """Return the protocol bytes of an error that follow the subject."""
    lines = (f"{name}: {value}".encode() for name, value in (error_headers(reply) or {}).items())
    block = _END.join([b"NATS/1.0", *lines, b"", b""])
    return b" %d %d\r\n%b%b\r\n" % (len(block), len(block) + len(reply.body), block, reply.body)
