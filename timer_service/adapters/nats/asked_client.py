"""The NATS client for queries: it refuses those that are too many before the driver spends time on them.

Any tenant may send faster than the service reads. What is not read waits in the server, and queries of other tenants
wait behind it. Refusals go over a connection of their own, so that replies do not wait until the server has read them.
"""

from functools import lru_cache
from typing import Any

from timer_service.adapters.nats.driver import GuardedClient, GuardedParser
from timer_service.adapters.nats.queries import error_headers, may_answer
from timer_service.core.ports.broker import QueryFilter, QueryReply
from timer_service.core.ports.turns import Turns
from timer_service.core.values.headers import decode_text

_END = b"\r\n"
_TOKENS = {b"MSG": 5, b"HMSG": 6}
"""How many tokens the line of a query with a reply subject has. The server adds a header to those of other accounts."""
_MOST_UNSENT = 256 * 1024
_MOST_AT_ONCE = 100
"""How many queries are refused before other tasks may run."""


class AskedClient(GuardedClient):
    """A client to which tenants send queries."""

    def __init__(self, prefix: bytes, reply_prefix: str, refuse: QueryFilter, refusing: GuardedClient) -> None:
        """`prefix`: of the subjects of queries, before the tenant. `reply_prefix`: of the inboxes of the service.

        `refusing` sends the refusals. While it is not connected, they are dropped.
        """
        super().__init__()
        self._refusing = refusing
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
        refusing = self._refusing
        if refusals and refusing.is_connected and refusing._pending_data_size < _MOST_UNSENT:  # noqa: SLF001
            await refusing.send(refusals)


class _AskedParser(GuardedParser):
    """Refuses whole queries. Everything else is left to the guarded parser."""

    nc: AskedClient

    def __init__(self, client: AskedClient) -> None:
        super().__init__(client)
        self._beginnings = tuple(b"%b %b" % (operation, client.prefix) for operation in _TOKENS)

    async def take_whole_messages(self, turns: Turns) -> None:
        """Refuse the queries at the beginning of the buffer, up to the first that is not refused."""
        while self.buf.startswith(self._beginnings):
            refusals, end = self._find_refused(bytes(self.buf))
            if not refusals:
                return
            del self.buf[:end]  # before anything is awaited: a lost connection empties the buffer
            await self.nc.send_refusals(b"".join(refusals))
            await turns.take(end)

    def _find_refused(self, read: bytes) -> tuple[list[bytes], int]:
        """Return the refusals of the first queries, and where these end."""
        refusals: list[bytes] = []
        start = 0
        while len(refusals) < _MOST_AT_ONCE and (line_end := read.find(_END, start)) >= 0:
            if not read.startswith(self._beginnings, start):
                break
            tokens = read[start:line_end].split(b" ")
            if len(tokens) != _TOKENS[tokens[0]]:
                break
            try:
                end = line_end + len(_END) + int(tokens[-1])
            except ValueError:
                break
            if end + len(_END) > len(read) or (refusal := self.nc.refusal_of(tokens[1], tokens[3])) is None:
                break
            refusals.append(refusal)
            start = end + len(_END)
        return refusals, start


@lru_cache(100)
def _after_subject(reply: QueryReply) -> bytes:
    """Return the protocol bytes of an error that follow the subject."""
    lines = (f"{name}: {value}".encode() for name, value in (error_headers(reply) or {}).items())
    block = _END.join([b"NATS/1.0", *lines, b"", b""])
    return b" %d %d\r\n%b%b\r\n" % (len(block), len(block) + len(reply.body), block, reply.body)
