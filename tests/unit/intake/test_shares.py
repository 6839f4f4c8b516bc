"""Which commands of a batch are applied at once, and which wait."""

import dataclasses

import pytest

from tests.harness.builders import command_address, raw_command
from timer_service.core.intake.decoder import LARGE_BYTES
from timer_service.core.intake.waiting import FAR_BEHIND, Shares, divide
from timer_service.core.values.address import UNREADABLE
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import RawCommand


def batch(text: str) -> list[RawCommand]:
    """Return a command for each word: its tenant, `!` if it is large, `~` if its body is away, `?` if it cancels."""
    commands = []
    for number, word in enumerate(text.split(), 1):
        address = command_address(word.rstrip("!?~"), "cancel-timer" if "?" in word else "schedule-timer")
        size = LARGE_BYTES + ("!" in word)
        raw = raw_command(position=Position(1, number))
        commands.append(dataclasses.replace(raw, address=address, size=size, left_bytes=int("~" in word)))
    return commands


def numbers(shares: Shares) -> tuple[list[int], list[int]]:
    return [each.position.sequence for each in shares.now], [each.position.sequence for each in shares.later]


@pytest.mark.parametrize(
    ("text", "behind", "waiting", "stopped", "later"),
    [
        ("a a a a b", FAR_BEHIND, [], [], []),
        ("a a b c d e f g", FAR_BEHIND + 1, [], [], []),
        ("a a a b c d e f", FAR_BEHIND + 1, [], [], [1, 2, 3]),
        ("a b a b a b a c", FAR_BEHIND + 1, [], [], [1, 2, 3, 4, 5, 6, 7]),
        ("a b a b", 0, ["a"], [], [1, 3]),
        ("a b a b", 0, ["c"], [], []),
        ("a b! b a a!", 0, [], [], [2, 3, 5]),
        ("a!", 0, [], [], []),
        ("a!", 1, [], [], [1]),
        ("a~", 0, [], [], [1]),
        ("a! a a!", 0, [], [], [1, 2, 3]),
        ("a a? a b b?", 0, [], ["cancel-timer"], [2, 3, 5]),
        ("a a? a", 0, [], ["schedule-timer"], [1, 2, 3]),
        ("a?.b a", 0, [UNREADABLE], [], [1]),
    ],
    ids=[
        "nobody while the service keeps up",
        "nobody with a fourth of the batch",
        "a tenant with more than a fourth, if far behind",
        "each tenant with more than a fourth, if far behind",
        "a tenant that waits already",
        "nobody because another tenant waits",
        "a large command, and the later ones of its tenant",
        "no large command that comes alone",
        "a large command with more behind it",
        "a command whose body was left in the log, also if it comes alone",
        "large commands of the only tenant",
        "a handler that fails for every command, and the later ones of the tenants",
        "all of a tenant whose first command has such a handler",
        "a tenant whose name is no name",
    ],
)
def test_who_waits(text: str, behind: int, waiting: list[str], stopped: list[str], later: list[int]) -> None:
    """Every command is applied or stored, in the order of the log. No command overtakes one of its tenant."""
    commands = batch(text)
    now = [number for number in range(1, len(commands) + 1) if number not in later]
    assert numbers(divide(commands, waiting, behind, stopped)) == (now, later)
