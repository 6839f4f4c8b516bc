"""Dead letters of hostile commands: each has an address, headers and a size that a broker can store."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.builders import command_address, raw_command
from tests.harness.clock import NOW
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.dead_letter import UNREADABLE
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, TENANT_PATTERN, Message, Position
from timer_service.core.values.raw_command import Headers, RawCommand

HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""What the NATS driver sends."""
CONTROL_LINE = 4096
REASONS = {"Timer-Error-Code", "Timer-Error-Message", "Timer-Source-Subject", "Timer-Source-Sequence"}


def letter_of(given: RawCommand, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    return Rejected(given, Rejection(Code.INVALID_JSON, "no"), None).letter(max_bytes)


def block(*headers: tuple[str, str]) -> Headers:
    """Return headers, of which some may have the same name."""
    return Headers(b"NATS/1.0\r\n" + b"\r\n".join(f"{name}: {value}".encode() for name, value in headers))


def header_bytes(letter: Message) -> int:
    return sum(len(f"{name}: {value}\r\n".encode()) for name, value in letter.headers.items())


def assert_sendable(letter: Message, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
    for token in (letter.address.tenant, letter.address.message):
        assert re.fullmatch("[!-)+-\\-/-=?-~]{1,64}", token)
    for name, value in letter.headers.items():
        assert HEADER_NAME.fullmatch(name)
        assert value.isprintable()
        assert value == value.strip()
    assert header_bytes(letter) < 62_000
    assert header_bytes(letter) + len(letter.body) < max_bytes - 500


@settings(deadline=None)
@given(
    st.text(max_size=100),
    st.text(max_size=100),
    st.text(max_size=2000),
    st.lists(st.binary(max_size=50) | st.text(max_size=50).map(str.encode), max_size=5),
)
def test_any_text(tenant: str, message: str, source: str, headers: list[bytes]) -> None:
    """The dead letter of any address, source and headers can be sent, and so can the event and the reply."""
    raw = raw_command(b"x", address=command_address(tenant, message))
    raw.source, raw.headers = source, Headers(b"NATS/1.0\r\n" + b"\r\n".join(headers))
    rejected = Rejected(raw, Rejection(Code.INVALID_JSON, "no"), None)
    assert_sendable(rejected.letter(MAX_MESSAGE_BYTES))
    assert (rejected.event(NOW) is not None) == bool(re.fullmatch(TENANT_PATTERN, tenant))
    assert rejected.reply()


@pytest.mark.parametrize("tenant", ["", "a" * 65, "Ä!", "a b", "a.b", "*", ">", r"\xff", "acme\n"])
def test_tenant_that_cannot_be_a_token(tenant: str) -> None:
    """A dead letter goes to a fixed token if the tenant of its address is invalid."""
    assert letter_of(raw_command(b"", address=command_address(tenant))).address.tenant == UNREADABLE
    assert not re.fullmatch(TENANT_PATTERN, UNREADABLE)


@pytest.mark.parametrize("message", ["", "a" * 65, "Schedule", "schedule timer", "a" * 4000, "*", ">", "ä"])
def test_message_that_cannot_be_a_token(message: str) -> None:
    """A dead letter goes to a fixed token if the message of its address is not a kebab-case name."""
    letter = letter_of(raw_command(b"", address=command_address("acme", message)))
    assert (letter.address.tenant, letter.address.message) == ("acme", UNREADABLE)


def test_source_is_escaped_and_cut() -> None:
    """The subject of the source is printable ASCII of at most 1,000 characters."""
    raw = raw_command(b"")
    raw.source = "timer.ü\x00\udcff." + "x" * 5000
    source = letter_of(raw).headers["Timer-Source-Subject"]
    assert source.startswith(r"timer.\xfc\x00\udcff.xxx")
    assert len(source) == 1000


def originals(letter: Message) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(letter.headers["Timer-Original-Headers"])
    return found


def test_headers_of_the_command() -> None:
    """All headers of the command are in one header, as JSON in ASCII, whatever their names and values are."""
    headers = {
        "X-Mine": "1",
        "empty": "",
        "Nats-TTL": "2",
        "Status": "409",
        "Timer-Body-Omitted": "true",
        "a/b": "1",
        "a b": "2",
        "ä": "3",
        "tab": "a\tb",
        "line": "a\nNats-Rollup: all",
        "control": "\x00\x1b\x7f",
    }
    letter = letter_of(raw_command(b"x", headers=headers))
    assert_sendable(letter)
    assert {name: originals(letter)[name] for name in headers} == {name: [value] for name, value in headers.items()}
    assert set(letter.headers) == {*REASONS, "Timer-Original-Headers"}


def test_headers_with_the_same_name() -> None:
    """All values of a header that occurs several times are there, in order. Names differ by case."""
    raw = raw_command(b"x")
    raw.headers = block(("X", "1"), ("once", "a"), ("X", "2"), ("x", "3"), ("X", "1"))
    assert originals(letter_of(raw)) == {"X": ["1", "2", "1"], "once": ["a"], "x": ["3"]}


def test_command_without_headers() -> None:
    """Without headers of the command, there is only the reason."""
    raw = raw_command(b"x")
    raw.headers = Headers(b"")
    assert set(letter_of(raw).headers) == REASONS


def test_many_headers() -> None:
    """If the headers do not fit, the dead letter omits them and says so. It keeps the body."""
    letter = letter_of(raw_command(b"body", headers={f"header-{number}": "x" * 20 for number in range(5000)}))
    assert_sendable(letter)
    assert (letter.body, letter.headers["Timer-Headers-Omitted"]) == (b"body", "true")


def test_headers_that_grow() -> None:
    """Headers that fit on the wire but not as escaped JSON are omitted."""
    letter = letter_of(raw_command(b"body", headers={"note": "\x01" * 20_000}))
    assert_sendable(letter)
    assert "Timer-Original-Headers" not in letter.headers
    assert letter.headers["Timer-Headers-Omitted"] == "true"


def test_bodies_near_the_limit() -> None:
    """A dead letter fits for each size of a body near the largest message."""
    for missing in range(2000):
        letter = letter_of(raw_command(b"x" * (70_000 - missing), headers={"a/b": "c"}), 70_000)
        assert_sendable(letter, 70_000)
        assert (letter.body == b"") == ("Timer-Body-Omitted" in letter.headers)


def test_control_line() -> None:
    """The first line on the wire has less than the 4,096 bytes that a NATS server accepts."""
    longest = letter_of(raw_command(b"", address=command_address("a" * 64, "b" * 64), position=Position(9**15, 9**15)))
    subject = f"{'prefix' * 40}.dlq.v1.{longest.address.tenant}.{longest.address.message}"
    assert len(f"HPUB {subject} {'_INBOX' * 20} 65535 1048576") < CONTROL_LINE
