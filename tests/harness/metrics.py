"""Metrics that tests can read."""

from collections import Counter, defaultdict


class RecordingMetrics:
    """A `core.metrics_port.MetricsPort` that keeps all values."""

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        """The number of commands by (message type, outcome)."""
        self.queries: Counter[tuple[str, str]] = Counter()
        """The number of queries by (name, outcome)."""
        self.waiting_queries = 0
        self.requests: Counter[tuple[str, str]] = Counter()
        """The number of requests by (name, outcome)."""
        self.waiting_requests = 0
        self.held_polls: list[int] = []
        self.tasks = 0
        self.dead_letters: Counter[str] = Counter()
        self.claims: list[int] = []
        self.publishes = 0
        self.failures: Counter[str] = Counter()
        self.settlements: Counter[str] = Counter()
        self.settled_in: Counter[tuple[str, str]] = Counter()
        """The number of rows by (table, outcome)."""
        self.lateness: list[float] = []
        self.late_rows: Counter[str] = Counter()
        self.lost = 0
        self.reached_limits = 0
        self.missed = 0
        self.not_started = Counter[str]()
        self.given_up: Counter[str] = Counter()
        self.ticks: Counter[str] = Counter()
        self.counts: dict[tuple[str, str], int] = {}
        """The number of rows in the last sample by (table, state)."""
        self.overdues: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        """By table, the count of overdue rows and the delay of the oldest row in seconds, for each sample."""

    def command_handled(self, message_type: str, outcome: str, count: int = 1) -> None:
        self.commands[message_type, outcome] += count

    def dead_letter_stored(self, code: str) -> None:
        self.dead_letters[code] += 1

    def query_answered(self, name: str, outcome: str) -> None:
        self.queries[name, outcome] += 1

    def queries_waiting(self, change: int) -> None:
        self.waiting_queries += change

    def request_answered(self, name: str, outcome: str) -> None:
        self.requests[name, outcome] += 1

    def requests_waiting(self, change: int) -> None:
        self.waiting_requests += change

    def polls_held(self, count: int) -> None:
        self.held_polls.append(count)

    def tasks_sent(self, count: int) -> None:
        self.tasks += count

    def claimed(self, count: int) -> None:
        self.claims.append(count)

    def published(self, seconds: float) -> None:  # noqa: ARG002 - the duration depends on the machine
        self.publishes += 1

    def publish_failed(self, status: str, count: int) -> None:
        self.failures[status] += count

    def settled(self, table: str, outcome: str, count: int) -> None:
        self.settlements[outcome] += count
        self.settled_in[table, outcome] += count

    def fired_late(self, table: str, seconds: float, count: int = 1) -> None:
        self.lateness.append(seconds)
        self.late_rows[table] += count

    def slots_missed(self, count: int) -> None:
        self.missed += count

    def slots_not_started(self, reason: str, count: int) -> None:
        self.not_started[reason] += count

    def leases_lost(self, count: int) -> None:
        self.lost += count

    def buried(self, table: str, count: int) -> None:
        self.given_up[table] += count

    def counted(self, table: str, state: str, count: int) -> None:
        self.counts[table, state] = count

    def overdue(self, table: str, count: int, oldest_seconds: float) -> None:
        self.overdues[table].append((count, oldest_seconds))

    def event_limits_reached(self, count: int) -> None:
        self.reached_limits = count

    def clock_measured(self, offset_seconds: float) -> None:
        self.clock_offset = offset_seconds

    def ticked(self, loop: str, seconds: float) -> None:  # noqa: ARG002
        self.ticks[loop] += 1
