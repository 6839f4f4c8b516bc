"""The answer of JetStream to a request for the number of stored messages per subject.

The answer may have 100,000 subjects and 5 MB. To parse it would take 0.2 s each time, and would stop all other tasks.
So it is split at its commas, part by part, and only subjects of interest are parsed.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from nats.aio.client import Client

_REQUEST_SECONDS = 2
_PART_BYTES = 256 * 1024
# A quote inside a JSON text has a backslash before it, and a subject of a command ends with a known word. So these
# bytes are found only where they separate values.
_STATE = b'"state":{'
_SUBJECTS = b'"subjects":{"'
_NEXT_SUBJECT = b',"'
_LAST_SEQUENCE = re.compile(rb'"last_seq":(\d+)')
_LAST_COUNT = re.compile(rb'[^\\]":\d+\}$')
_LONGEST_COUNT = 32
_MOST_BYTES = 16 * 1024 * 1024
"""More than the subjects of 100,000 valid commands have."""


class Entry(NamedTuple):
    """A subject with the number of its stored messages."""

    subject: str
    number: int


class Listing:
    """The subjects of stored messages with their numbers, as they were when the stream ended at `last_sequence`."""

    def __init__(self, answer: bytes) -> None:
        """Raises `ValueError` if the answer is not the info of a stream, or is too large."""
        if len(answer) > _MOST_BYTES:
            raise ValueError(f"the subjects of the stream have {len(answer)} bytes")
        state = answer.find(_STATE)
        found = _LAST_SEQUENCE.search(answer, max(state, 0))
        if state < 0 or found is None:
            raise ValueError(f"not the info of a stream: {answer[:200]!r}")
        self.last_sequence = int(found[1])
        self._answer = answer
        begin = answer.find(_SUBJECTS, state)
        self._begin = begin + len(_SUBJECTS) if begin >= 0 else len(answer)

    @property
    def size(self) -> int:
        """The bytes of the answer."""
        return len(self._answer)

    def parts(self) -> Iterator[list[bytes]]:
        """Yield the raw entries in parts. To handle a part takes some milliseconds. `read_entry` parses an entry."""
        begin, end = self._begin, self._find_end()
        while begin < end:
            cut = self._answer.find(_NEXT_SUBJECT, begin + _PART_BYTES, end)
            cut = end if cut < 0 else cut
            yield self._answer[begin:cut].split(_NEXT_SUBJECT)
            begin = cut + len(_NEXT_SUBJECT)

    def _find_end(self) -> int:
        end = self._answer.find(b"}", self._begin)
        while end >= 0 and not _LAST_COUNT.search(self._answer, max(end - _LONGEST_COUNT, 0), end + 1):
            end = self._answer.find(b"}", end + 1)
        return end


def read_entry(raw: bytes) -> Entry:
    """Parse a raw entry."""
    subject, _, number = raw.rpartition(b'":')
    return Entry(json.loads(b'"%s"' % subject), int(number))


def with_number(raw: bytes, number: int) -> bytes:
    """Return the raw entry of the same subject with another number."""
    return b'%s":%d' % (raw.rpartition(b'":')[0], number)


async def list_subjects(client: Client, stream: str, pattern: str) -> Listing:
    """Return the subjects of a stream that match a pattern; at most 100,000 subjects.

    Raises `ValueError` if the broker answers with an error, and the errors of the client.
    """
    request = json.dumps({"subjects_filter": pattern}).encode()
    return Listing((await client.request(f"$JS.API.STREAM.INFO.{stream}", request, timeout=_REQUEST_SECONDS)).data)
