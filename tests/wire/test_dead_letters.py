"""Dead letters of hostile commands: each has an address, headers and a size that a broker can store."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.builders import command_address, raw_command
from tests.harness.clock import NOW
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.address import MAX_MESSAGE_BYTES, TENANT_PATTERN, UNREADABLE
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Message, Position
from timer_service.core.values.raw_command import Headers, RawCommand

HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""What the NATS driver sends."""
REASONS = {"Timer-Error-Code", "Timer-Error-Message", "Timer-Source-Subject", "Timer-Source-Sequence"}


def letter_of(given: RawCommand, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Return the dead letter of a command, which can be sent."""
    letter = Rejected(given, Rejection(Code.INVALID_JSON, "no"), None).letter(max_bytes)
    for token in (letter.address.tenant, letter.address.message):
        assert re.fullmatch("[!-)+-\\-/-=?-~]{1,64}", token)
    for name, value in letter.headers.items():
        assert HEADER_NAME.fullmatch(name)
        assert value.isprintable()
        assert value == value.strip()
    headers = sum(len(f"{name}: {value}\r\n".encode()) for name, value in letter.headers.items())
    assert headers < 62_000
    assert headers + len(letter.body) < max_bytes - 500
    assert letter.body == (b"" if "Timer-Body-Omitted" in letter.headers else given.body)
    assert ("Timer-Original-Headers" in letter.headers) == (
        len(given.headers.block) > 0 and "Timer-Headers-Omitted" not in letter.headers
    )
    return letter


@settings(deadline=None)
@given(
    st.text(max_size=100),
    st.text(max_size=100),
    st.text(max_size=2000),
    st.lists(st.binary(max_size=50) | st.text(max_size=50).map(str.encode), max_size=5),
)
def test_any_text(tenant: str, message: str, source: str, headers: list[bytes]) -> None:
    """The dead letter of any address, source and headers can be sent, and so can the event and the reply."""
    raw = raw_command(b"x", address=command_address(tenant, message), headers={"a": "b"})
    raw.source, raw.headers = source, Headers(b"NATS/1.0\r\nX: 1\r\n" + b"\r\n".join(headers))
    letter_of(raw)
    rejected = Rejected(raw, Rejection(Code.INVALID_JSON, "no"), None)
    assert (rejected.event(NOW) is not None) == bool(re.fullmatch(TENANT_PATTERN, tenant))
    assert rejected.reply()


@pytest.mark.parametrize("name", ["", "a" * 65, "Ä!", "a b", "*", ">", r"\xff", "acme\n", "a" * 4000])
def test_name_that_cannot_be_a_token(name: str) -> None:
    """A dead letter goes to a fixed token if the tenant or the message of its address is invalid."""
    for address in (command_address(name), command_address("acme", name)):
        found = letter_of(raw_command(b"", address=address)).address
        assert UNREADABLE in (found.tenant, found.message)
        assert found.tenant in (UNREADABLE, address.tenant)


def test_source_is_escaped_and_cut() -> None:
    """The subject of the source is printable ASCII of at most 1,000 characters."""
    raw = raw_command(b"")
    raw.source = "timer.ü\x00\udcff." + "x" * 5000
    source = letter_of(raw).headers["Timer-Source-Subject"]
    assert (source.startswith(r"timer.\xfc\x00\udcff.xxx"), len(source)) == (True, 1000)


def test_headers_of_the_command() -> None:
    """All headers of the command are in one header, as JSON in ASCII, whatever their names and values are.

    All values of a header that occurs several times are there, in order. Names differ by case.
    """
    headers = {
        "X-Mine": "1",
        "empty": "",
        "Nats-TTL": "2",
        "Status": "409",
        "Timer-Body-Omitted": "true",
        "a/b": "1",
        "ä": "3",
        "tab": "a\tb",
        "line": "a\nNats-Rollup: all",
        "control": "\x00\x1b\x7f",
    }
    letter = letter_of(raw_command(b"x", headers=headers))
    found = json.loads(letter.headers["Timer-Original-Headers"])
    assert {name: found[name] for name in headers} == {name: [value] for name, value in headers.items()}
    assert set(letter.headers) == {*REASONS, "Timer-Original-Headers"}
    raw = raw_command(b"x")
    raw.headers = Headers(b"NATS/1.0\r\nX: 1\r\nonce: a\r\nX: 2\r\nx: 3\r\nX: 1")
    found = json.loads(letter_of(raw).headers["Timer-Original-Headers"])
    assert found == {"X": ["1", "2", "1"], "once": ["a"], "x": ["3"]}


@pytest.mark.parametrize(
    ("headers", "body", "omitted"),
    [
        ({f"header-{number}": "x" * 20 for number in range(5000)}, b"body", {"Timer-Headers-Omitted"}),
        ({"note": "\x01" * 20_000}, b"body", {"Timer-Headers-Omitted"}),
        ({"note": "y" * 58_000}, b"x" * (MAX_MESSAGE_BYTES - 65_000), set()),
        ({"note": "y" * 58_000}, b"x" * (MAX_MESSAGE_BYTES - 100), {"Timer-Body-Omitted"}),
        ({"note": "y" * 65_000}, b"x" * MAX_MESSAGE_BYTES, {"Timer-Body-Omitted", "Timer-Headers-Omitted"}),
    ],
    ids=["many headers", "headers that grow", "all fits", "large body", "all is large"],
)
def test_parts_that_do_not_fit(headers: dict[str, str], body: bytes, omitted: set[str]) -> None:
    """A part of a command that does not fit is left out, and the dead letter says so."""
    letter = letter_of(raw_command(body, headers=headers))
    assert {name for name in letter.headers if name.endswith("-Omitted")} == omitted


def test_ids_of_two_logs() -> None:
    """The dead letter and the event have ids that commands of another log with the same sequence do not have."""
    ids = set()
    for epoch in (1, 2):
        rejected = Rejected(raw_command(position=Position(epoch, 4)), Rejection(Code.INVALID_JSON, "no"), None)
        event = rejected.event(NOW)
        assert event is not None
        ids |= {event.id, rejected.letter(MAX_MESSAGE_BYTES).id}
    assert len(ids) == 4


def test_long_headers() -> None:
    """Only the first 64 KiB of the headers of a command are kept."""
    headers = Headers(b"NATS/1.0\r\nfirst: 1\r\n" + b"n:\r\n" * 20_000 + b"last: 2")
    assert (len(headers.block), headers.get("first"), headers.get("last")) == (64 * 1024, "1", None)


def test_bodies_near_the_limit() -> None:
    """A dead letter fits for each size of a body near the largest message."""
    for missing in range(2000):
        letter_of(raw_command(b"x" * (70_000 - missing), headers={"a/b": "c"}), 70_000)
