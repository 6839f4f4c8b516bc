"""What has become of each command of the log. After each commit of a reader, no command may be missing.

A command has exactly one of these fates:

- It is behind the cursor, and was applied once, or has a dead letter, or waits in the database.
- It is in front of the cursor, and has had no effect.
- An operator has removed it from the log before it was read.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from tests.harness.memory_log import StoredLog
from timer_service.core.values.message import Message

_MOST_INNOCENT_ERRORS = 1
"""A command is tried twice alone, so one error of the environment makes no dead letter."""
_MOST_INNOCENT_DEATHS = 2
"""Before a command is given up unread, two processes died with it alone, and one before."""


class LogChange(StrEnum):
    """How an operator, or a fault of the broker, changes the log."""

    RECREATED = "replaced by an empty one"
    ROLLED_BACK = "the last command is missing"
    ROLLED_BACK_FAR = "the last four commands are missing"


def change_log(log: StoredLog, change: LogChange) -> None:
    """Change the log of a broker."""
    if change is LogChange.RECREATED:
        log.recreate(log.epoch + 1)
    else:
        log.roll_back(max(log.last_sequence - (4 if change is LogChange.ROLLED_BACK_FAR else 1), 0))


class Applied(NamedTuple):
    """A command that a handler has applied. `slice_` names the handler."""

    id: str
    slice_: str


class Stored(NamedTuple):
    """What a commit of a reader has left in the database."""

    stored_at: int
    """When the last command behind the cursor was stored; 0 if there is none."""
    waiting: int
    """How many commands wait."""
    letters: Mapping[str, str]
    """All dead letters so far: the code, by the id of the command."""


class _Sent(NamedTuple):
    number: int
    tenant: str
    fails: bool


class LogLedger:
    """The commands of one history. Its methods raise `AssertionError` if a command is lost, repeated or overtaken."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        self._number_at: dict[int, int] = {0: 0}
        """The numbers of the commands, by the instants at which they were stored."""
        self._behind = 0
        """The number of the last command behind the cursor."""
        self._lost: set[str] = set()
        """The commands that were removed from the log before a commit was behind them."""
        self._last: defaultdict[str, int] = defaultdict(int)
        """The number of the last command of each tenant that was applied or rejected."""
        self.applied: set[str] = set()
        self.letters: dict[str, str] = {}
        self.errors = 0
        """How many errors were injected into transactions of readers."""
        self.takeovers = 0
        """How often a reader has begun after another one that has not stopped."""
        self._last_reader: object = None
        """The reader that has begun last, unless it has stopped."""

    def reader_began(self, reader: object) -> None:
        """Count the readers that begin after one that has not stopped."""
        self.takeovers += self._last_reader not in {None, reader}
        self._last_reader = reader

    def reader_stopped(self, reader: object) -> None:
        """Note that a reader has stopped in order."""
        if self._last_reader is reader:
            self._last_reader = None

    def send(self, command: str, tenant: str, stored_at: int, *, fails: bool = False) -> None:
        """Record a command that was stored in the log. `fails`: it is invalid, or its handler fails each time."""
        assert stored_at not in self._number_at, "each command needs its own instant"
        number = len(self._sent) + 1
        self._sent[command] = _Sent(number, tenant, fails)
        self._number_at[stored_at] = number

    @property
    def unapplied(self) -> frozenset[str]:
        """The commands that have had no effect, and are not lost."""
        return frozenset(self._sent.keys() - self.applied - self.letters.keys() - self._lost)

    def sent_before(self, at: int) -> frozenset[str]:
        """Return the commands that were stored before an instant in Unix milliseconds."""
        numbers = {number for stored_at, number in self._number_at.items() if stored_at <= (at - 1) * 1_000_000}
        return frozenset(command for command, sent in self._sent.items() if sent.number in numbers)

    def of_tenants(self, commands: Iterable[str], tenants: Iterable[str]) -> frozenset[str]:
        """Return the commands that are of one of the tenants."""
        wanted = set(tenants)
        return frozenset(each for each in commands if self._sent[each].tenant in wanted)

    def lose_unread(self, kept: Iterable[str]) -> None:
        """Record that the log now has only these commands."""
        gone = {each for each, sent in self._sent.items() if sent.number > self._behind} - set(kept)
        self._lost |= gone - self.applied - self.letters.keys()

    def committed(self, applied: Sequence[Applied], stored: Stored) -> None:
        """Compare a commit of a reader. `applied`: what it has applied, in the order of the handlers."""
        rejected = stored.letters.keys() - self.letters.keys()
        assert self.letters.items() <= stored.letters.items(), "a dead letter has changed"
        for each in [*(one.id for one in applied), *rejected]:
            assert each in self._sent, f"{each} was never sent"
            assert each not in self.applied, f"{each} was applied before"
            assert each not in self.letters, f"{each} was rejected before"
        assert not rejected & {each.id for each in applied}, "a command was applied and rejected"
        self._check_order(applied, rejected)
        self.applied |= {each.id for each in applied}
        for each in rejected:
            self._check_rejection(each, stored.letters[each])
            self.letters[each] = stored.letters[each]
        self._check_complete(stored)

    def _check_order(self, applied: Sequence[Applied], rejected: Iterable[str]) -> None:
        """Assert that each handler applies the commands of a tenant in order, and no commit has an older one."""
        of_handlers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        of_tenants: defaultdict[str, list[int]] = defaultdict(list)
        for each in applied:
            of_handlers[self._sent[each.id].tenant, each.slice_].append(self._sent[each.id].number)
        for command in [*(each.id for each in applied), *rejected]:
            of_tenants[self._sent[command].tenant].append(self._sent[command].number)
        for handler, numbers in of_handlers.items():
            assert numbers == sorted(set(numbers)), f"{handler} applied {numbers}"
        for tenant, numbers in of_tenants.items():
            last = self._last[tenant]
            assert min(numbers) > last, f"{numbers} of {tenant} were handled after {last}"
            self._last[tenant] = max(numbers)

    def _check_rejection(self, command: str, code: str) -> None:
        if not self._sent[command].fails:
            is_suspect = self.errors > _MOST_INNOCENT_ERRORS or self.takeovers > _MOST_INNOCENT_DEATHS
            assert code == "INTERNAL", f"{command} was rejected with {code}"
            assert is_suspect, f"{command} was rejected after {self.errors} errors and {self.takeovers} crashes"

    def _check_complete(self, stored: Stored) -> None:
        """Assert that each command behind the cursor was applied, or rejected, or waits."""
        assert stored.stored_at in self._number_at, "the cursor is at no command"
        self._behind = self._number_at[stored.stored_at]
        behind = {each for each, sent in self._sent.items() if sent.number <= self._behind}
        done = self.applied | self.letters.keys()
        assert done <= behind, f"{done - behind} were handled in front of the cursor"
        most = len(behind - done)
        least = most - len(self._lost & behind - done)
        assert least <= stored.waiting <= most, f"{stored.waiting} commands wait, of {behind - done}"

    def check_finished(self, stored: Stored, in_log: Iterable[str]) -> None:
        """Assert that the log was read to its end, nothing waits, and no command is left."""
        assert stored.waiting == 0, f"{stored.waiting} commands still wait"
        last = max((self._sent[each].number for each in in_log), default=0)
        assert last <= self._behind, f"the cursor is at {self._behind}, not at the end of the log, {last}"
        assert not self.unapplied, f"{self.unapplied} were lost"


def read_stored(connection: sqlite3.Connection, published: Iterable[Message]) -> Stored:
    """Read what the last commit has left. `published`: the dead letters that are not in the database any more."""
    (stored_at,) = connection.execute("SELECT COALESCE(MAX(stored_at), 0) FROM command_log").fetchone()
    (number,) = connection.execute(
        "SELECT COALESCE(SUM(number_of_commands - done), 0) FROM waiting_commands"
    ).fetchone()
    rows = connection.execute("SELECT headers FROM dead_letters")
    headers = [*(json.loads(text) for (text,) in rows), *(each.headers for each in published)]
    return Stored(stored_at, number, {_id_of(each): each["Timer-Error-Code"] for each in headers})


def _id_of(letter: Mapping[str, str]) -> str:
    """Return the id of the command of a dead letter."""
    identifier: str = json.loads(letter["Timer-Original-Headers"])["Nats-Msg-Id"][0]
    return identifier


def read_postponed(connection: sqlite3.Connection, now: int) -> set[str]:
    """Return the tenants whose next command has failed, or was blocked, and is tried later."""
    rows = connection.execute("SELECT tenant_id FROM waiting_commands WHERE available_at > ?", (now,))
    return {tenant for (tenant,) in rows}
