"""Dead letters of hostile commands: each has an address, headers and a size that a broker can store."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.builders import command_address, delivery
from tests.harness.clock import NOW
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.dead_letter import UNREADABLE
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, TENANT_PATTERN, Message, Position

HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""What the NATS driver sends."""
CONTROL_LINE = 4096


def letter_of(given: Delivery, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    return Rejected(given, Rejection(Code.INVALID_JSON, "no"), None).messages(NOW, max_bytes)[0]


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
    st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5),
)
def test_any_text(tenant: str, message: str, source: str, headers: dict[str, str]) -> None:
    """The dead letter of any address, source and headers can be sent, and so can the event and the reply."""
    given_delivery = delivery(b"x", address=command_address(tenant, message), headers=headers)
    given_delivery.source, given_delivery.message_id = source, message
    rejected = Rejected(given_delivery, Rejection(Code.INVALID_JSON, "no"), None)
    letter, *events = rejected.messages(NOW, MAX_MESSAGE_BYTES)
    assert_sendable(letter)
    assert_sendable(rejected.smallest_letter())
    assert len(events) == bool(re.fullmatch(TENANT_PATTERN, tenant))
    assert rejected.reply()


@pytest.mark.parametrize("tenant", ["", "a" * 65, "Ä!", "a b", "a.b", "*", ">", r"\xff", "acme\n"])
def test_tenant_that_cannot_be_a_token(tenant: str) -> None:
    """A dead letter goes to a fixed token if the tenant of its address is invalid."""
    assert letter_of(delivery(b"", address=command_address(tenant))).address.tenant == UNREADABLE
    assert not re.fullmatch(TENANT_PATTERN, UNREADABLE)


@pytest.mark.parametrize("message", ["", "a" * 65, "Schedule", "schedule timer", "a" * 4000, "*", ">", "ä"])
def test_message_that_cannot_be_a_token(message: str) -> None:
    """A dead letter goes to a fixed token if the message of its address is not a kebab-case name."""
    letter = letter_of(delivery(b"", address=command_address("acme", message)))
    assert (letter.address.tenant, letter.address.message) == ("acme", UNREADABLE)


def test_source_is_escaped_and_cut() -> None:
    """The subject of the source is printable ASCII of at most 1,000 characters."""
    given_delivery = delivery(b"")
    given_delivery.source = "timer.ü\x00\udcff." + "x" * 5000
    source = letter_of(given_delivery).headers["Timer-Source-Subject"]
    assert source.startswith(r"timer.\xfc\x00\udcff.xxx")
    assert len(source) == 1000


def test_headers_that_cannot_be_sent() -> None:
    """Plain headers stay as they are. All others are in one header, as JSON in ASCII."""
    plain = {"X-Mine": "1", "note": "two words: a colon", "empty": ""}
    others = {
        "a/b": "1",
        "a b": "2",
        "ä": "3",
        "": "4",
        "tab": "a\tb",
        "line": "a\r\nNats-Rollup: all",
        "control": "\x00\x1b\x7f",
        "umlaut": "ü",
        "surrogate": "\udcff",
        "padded": " a ",
    }
    letter = letter_of(delivery(b"x", headers=plain | others))
    assert {name: letter.headers[name] for name in plain} == plain
    assert json.loads(letter.headers["Timer-Original-Headers"]) == others
    assert letter.headers["Timer-Original-Headers"].isascii()
    assert "Timer-Headers-Omitted" not in letter.headers


class Repeated(dict[str, str]):
    """Headers of which some names occur several times, as a broker may deliver them."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def test_headers_with_the_same_name() -> None:
    """All values of a header that occurs several times are in the JSON header, in order. Names differ by case."""
    repeated = [("X", "1"), ("once", "a"), ("X", "2"), ("Nats-TTL", "1"), ("x", "3"), ("Nats-TTL", "2"), ("X", "1")]
    given_delivery = delivery(b"x")
    given_delivery.headers = Repeated(*repeated, ("a/b", "4"))
    letter = letter_of(given_delivery)
    assert json.loads(letter.headers["Timer-Original-Headers"]) == {
        "X": ["1", "2", "1"],
        "Nats-TTL": ["1", "2"],
        "a/b": "4",
    }
    assert (letter.headers["once"], letter.headers["x"]) == ("a", "3")
    assert {"X", "Timer-Original-Nats-TTL", "Timer-Headers-Omitted"}.isdisjoint(letter.headers)


def test_one_header_that_occurs_too_often() -> None:
    """A header that occurs more than 100 times counts as more than 100 headers."""
    given_delivery = delivery(b"x")
    given_delivery.headers = Repeated(*[("X", "1")] * 101)
    assert letter_of(given_delivery).headers["Timer-Headers-Omitted"] == "true"


def test_headers_that_mislead() -> None:
    """Headers that look like headers of the letter or like a status of the broker are in the JSON header too."""
    headers = {"Timer-Body-Omitted": "true", "timer-error-code": "X", "Timer-Original-Nats-TTL": "1", "Status": "409"}
    letter = letter_of(delivery(b"", headers={**headers, "Nats-TTL": "2"}))
    assert json.loads(letter.headers["Timer-Original-Headers"]) == headers
    assert letter.headers["Timer-Original-Nats-TTL"] == "2"
    assert {"Status", "Timer-Body-Omitted", "timer-error-code"}.isdisjoint(letter.headers)


def test_most_headers() -> None:
    """A dead letter has at most 100 headers of the command, however small they are. Otherwise it says so."""
    most, more = (letter_of(delivery(headers={f"X-{each}": "" for each in range(number)})) for number in (100, 101))
    assert ("X-99" in most.headers, "Timer-Headers-Omitted" in most.headers) == (True, False)
    assert ("X-99" in more.headers, "Timer-Headers-Omitted" in more.headers) == (False, True)


@pytest.mark.parametrize("name", ["header-{}", "header {}"])
def test_many_headers(name: str) -> None:
    """If the headers do not fit, the dead letter omits them and says so. It keeps the body."""
    letter = letter_of(delivery(b"body", headers={name.format(number): "x" * 20 for number in range(5000)}))
    assert_sendable(letter)
    assert (letter.body, letter.headers["Timer-Headers-Omitted"]) == (b"body", "true")


def test_headers_that_grow() -> None:
    """Headers that fit on the wire but not as escaped JSON are omitted."""
    letter = letter_of(delivery(b"body", headers={"note": "\x01" * 20_000}))
    assert_sendable(letter)
    assert "Timer-Original-Headers" not in letter.headers
    assert letter.headers["Timer-Headers-Omitted"] == "true"


def test_bodies_near_the_limit() -> None:
    """A dead letter fits for each size of a body near the largest message."""
    for missing in range(2000):
        letter = letter_of(delivery(b"x" * (70_000 - missing), headers={"a/b": "c"}), 70_000)
        assert_sendable(letter, 70_000)
        assert (letter.body == b"") == ("Timer-Body-Omitted" in letter.headers)


def test_control_line() -> None:
    """The first line on the wire has less than the 4,096 bytes that a NATS server accepts."""
    longest = letter_of(delivery(b"", address=command_address("a" * 64, "b" * 64), position=Position(9**15, 9**15)))
    subject = f"{'prefix' * 40}.dlq.v1.{longest.address.tenant}.{longest.address.message}"
    assert len(f"HPUB {subject} {'_INBOX' * 20} 65535 1048576") < CONTROL_LINE
