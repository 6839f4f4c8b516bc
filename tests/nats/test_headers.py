"""Header blocks: which headers they have, and what they cost before and while somebody reads them."""

import pytest

from tests.harness.raw_nats import header_block
from timer_service.adapters.nats.api import RawHeaders


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"NATS/1.0\r\nA: 1\r\nB:2\r\n\r\n", {"A": "1", "B": "2"}),
        (b"NATS/1.0\r\n\xff: \xfe\r\n\r\n", {r"\xff": r"\xfe"}),
        (b"NATS/1.0\r\na/b c: d: e\r\n\r\n", {"a/b c": "d: e"}),
        (b"NATS/1.0\r\nno colon\r\n: no name\r\nA: 1\r\n\r\n", {"A": "1"}),
        (b"NATS/1.0\r\nA:\r\nB: \t2 \r\n", {"A": "", "B": "2"}),
        (b"NATS/1.0\r\nA: 1", {"A": "1"}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 409 Consumer Deleted\r\n\r\n", {"Status": "409", "Description": "Consumer Deleted"}),
        (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\nStatus: 1\r\n\r\n",
            {"Status": "408", "Description": "Request Timeout", "Nats-Pending-Messages": "1"},
        ),
        (b"NATS/1.0 x\r\n\r\n", {}),
        (b"NATS/1.0", {}),
        (b"", {}),
        (b"\xff\xff", {}),
    ],
)
def test_header_blocks(block: bytes, headers: dict[str, str]) -> None:
    """Each line with a name and a colon is a header, whatever its bytes. A status line becomes two headers."""
    read = RawHeaders(block)
    assert dict(read.items()) == headers
    assert {name: read.get(name) for name in headers if name.isascii() and "\\" not in name} == {
        name: value for name, value in headers.items() if name.isascii() and "\\" not in name
    }


def test_headers_by_name() -> None:
    """A header is found by its whole name only. If it occurs several times, `get` returns the last value."""
    read = RawHeaders(header_block(b"A: 1", b"xA: 2", b"Ax: 3", b"note: A: 4", b"A:5"))
    assert [read.get(name) for name in ("A", "a", "x", "note", "")] == ["5", None, None, "A: 4", None]
    assert list(read.items()) == [("A", "1"), ("xA", "2"), ("Ax", "3"), ("note", "A: 4"), ("A", "5")]
