"""The state machine of the pulls: when to ask the server for commands, and what its status messages mean.

Pure: every event returns the next state. `subscription` sends the pulls and reports the events.
"""

from enum import StrEnum
from typing import NamedTuple

# Short: `close` waits for the pull to end. Commands wait for it too if a restarted server has forgotten the pull.
PULL_SECONDS = 1
_GRACE_SECONDS = 0.5
_PAUSE_SECONDS = 1

_EXPIRED = {"404", "408"}
_GONE = {"503": "", "409": "Consumer Deleted"}
"""Status codes that mean that the consumer does not exist, with the text that their description must contain."""
_MOST_SILENT = 3
_SILENCE = "it does not answer pull requests"
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_SPLIT_SECONDS = 10
_PARTS = 32
"""The consumer holds 512 requests of all instances (`max_waiting`)."""


class Phase(StrEnum):
    """The phases of the pulls."""

    LOST = "lost"
    IDLE = "idle"
    PULLING = "pulling"
    CUT = "cut"
    PAUSED = "paused"


class Demand(NamedTuple):
    """How much a pull asks for."""

    requests: int
    """How many requests are sent. All have the reply subject of the pull."""
    batch: int
    """How many commands each request asks for."""
    max_bytes: int | None
    """The most bytes of the commands for one request; None if there is no limit."""

    @property
    def commands(self) -> int:
        """The number of commands that the pull may bring."""
        return self.requests * self.batch


class Pulls(NamedTuple):
    """The state of the pulls. One pull is outstanding at a time.

    Phases:

    =======  ===========================================================================
    Lost     not joined: the connection is lost, or the consumer or its stream is gone
    Idle     joined, no pull is outstanding
    Pulling  a pull is outstanding, until 1.5 s after it was sent
    Cut      the server may have dropped the rest of the answer; the lost commands are looked for
    Paused   the server refused a pull; the next one waits until `until`
    =======  ===========================================================================

    Transitions. Each pull has a number, and its status message carries it. A status of an earlier pull changes nothing.

    =======  =================================================  ======================================
    phase    event                                              next phase
    =======  =================================================  ======================================
    Lost     `joined`                                           Idle
    Idle     `sent`                                             Pulling
    Pulling  `command`: the last one that the pull asked for    Idle
    Pulling  `empty`, unless the pull is split                  Cut
    any      `empty`, while an answer is overdue                Cut
    Cut      `found`: the lost commands were looked for         Idle
    Pulling  `status` 404 or 408: the pull expired              Idle
    Pulling  `status` 503, or 409 "Consumer Deleted"            Lost
    Pulling  `status` any other, after at least one command     Idle
    Pulling  `status` "Message Size Exceeds MaxBytes"           Idle: the next pull asks for one command
    Pulling  `status` any other, and no command came            Paused for 1 s
    Pulling  `at`: 1.5 s passed without a status                Idle
    Paused   `at`: the pause is over                            Idle
    any      `lost`                                             Lost
    =======  =================================================  ======================================

    If the service and its streams are in different accounts, the server takes an empty command (no headers, no body)
    for the end of the answer to a request, and drops the rest. So for 10 s after an empty command each pull is split:
    it has 32 requests for one command each. Such a pull loses nothing. See docs/decisions/0040.

    A command does not name its pull. A late command of an earlier pull counts for the current one, so the next pull is
    sent a little early. If the earlier pull was given up and was not split, its answer is overdue: an empty command may
    cut that answer in any phase, even if the current pull is split or has brought everything.
    """

    phase: Phase = Phase.LOST
    number: int = 0
    """The number of the newest pull."""
    missing: int = 0
    """How many commands the outstanding pull may still bring."""
    received: int = 0
    """How many commands have come since the newest pull was sent."""
    until: float = 0
    """When the outstanding pull is given up, or when the pause ends, as monotonic seconds."""
    wants_one: bool = False
    """Whether the next pull asks for one command of any size, because the next command is larger than a batch."""
    refusal: str | None = None
    """Why the server refused the newest pull; None if it did not."""
    silent: int = 0
    """How many pulls in a row the server has not answered."""
    is_split: bool = False
    """Whether each request of the newest pull asks for one command."""
    split_until: float = 0
    """Until when pulls are split, as monotonic seconds."""
    overdue: bool = False
    """Whether a pull that was not split was given up, and its answer may still come."""

    @property
    def outstanding(self) -> bool:
        """Whether the server may still send commands for a pull."""
        return self.phase is Phase.PULLING

    @property
    def _can_be_cut(self) -> bool:
        """Whether the server may drop the rest of an answer after an empty command."""
        return self.overdue or (self.outstanding and not self.is_split)

    def joined(self) -> "Pulls":
        """The consumer exists, and its stream is known."""
        return Pulls(Phase.IDLE, self.number, split_until=self.split_until, overdue=self.overdue)

    def lost(self) -> "Pulls":
        """The connection is lost, or the consumer is gone. An outstanding pull may be forgotten."""
        return Pulls(Phase.LOST, self.number, split_until=self.split_until, overdue=self._can_be_cut)

    def demand(self, limit: int, max_bytes: int, now: float) -> Demand:
        """Return what the next pull asks for. `limit` and `max_bytes`: the most commands and bytes of a batch."""
        if self.wants_one:
            return Demand(1, 1, None)
        if now < self.split_until:
            parts = min(limit, _PARTS)
            return Demand(parts, 1, max_bytes // parts)
        return Demand(1, limit, max_bytes)

    def sent(self, demand: Demand, now: float) -> "Pulls":
        """A pull is sent."""
        return Pulls(
            Phase.PULLING,
            self.number + 1,
            demand.commands,
            until=now + PULL_SECONDS + _GRACE_SECONDS,
            refusal=self.refusal,
            silent=self.silent,
            is_split=demand.batch == 1,
            split_until=self.split_until,
            overdue=self.overdue,
        )

    def commands(self, count: int) -> "Pulls":
        """Commands arrived."""
        if not count:
            return self
        missing = self.missing - count
        phase = Phase.IDLE if self.outstanding and missing <= 0 else self.phase
        return self._replace(phase=phase, missing=missing, received=self.received + count, refusal=None, silent=0)

    def empty(self, now: float) -> "Pulls":
        """The command that arrived is empty: it has neither headers nor a body."""
        phase = Phase.CUT if self._can_be_cut else self.phase
        return self._replace(phase=phase, split_until=now + _SPLIT_SECONDS)

    def found(self) -> "Pulls":
        """The lost commands were looked for, and the server sends nothing more for the pull that was cut."""
        return self._replace(phase=Phase.IDLE, missing=0, overdue=False) if self.phase is Phase.CUT else self

    def status(self, number: int, code: str, description: str, now: float) -> "Pulls":
        """The server ended a pull."""
        if number != self.number or not self.outstanding:
            return self
        if code in _GONE and _GONE[code] in description:
            return self.lost()
        idle = self._replace(phase=Phase.IDLE, missing=0, silent=0)
        if code in _EXPIRED:
            return idle._replace(refusal=None)
        if self.received:
            return idle
        if description == _TOO_LARGE:
            return idle._replace(wants_one=True)
        refusal = f"{code} {description}".strip()
        return idle._replace(phase=Phase.PAUSED, until=now + _PAUSE_SECONDS, refusal=refusal)

    def at(self, now: float) -> "Pulls":
        """Time has passed."""
        if now < self.until or self.phase not in {Phase.PULLING, Phase.PAUSED}:
            return self
        silent = self.silent + (self.phase is Phase.PULLING)
        refusal = _SILENCE if silent >= _MOST_SILENT else self.refusal
        return self._replace(phase=Phase.IDLE, missing=0, silent=silent, refusal=refusal, overdue=self._can_be_cut)
