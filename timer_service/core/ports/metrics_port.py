"""PORT: what the core measures about itself, independent of any metrics library."""

from typing import Protocol


class MetricsPort(Protocol):
    """The counts and durations of the core. A tenant is never a label: the number of series would have no limit."""

    def command_handled(self, message_type: str, outcome: str, count: int = 1) -> None:
        """Count commands by their type and outcome."""

    def dead_letter_stored(self, code: str) -> None:
        """Count a rejected command. Its dead letter is in the database."""

    def query_answered(self, name: str, outcome: str) -> None:
        """Count a query by its name and outcome."""

    def queries_waiting(self, change: int) -> None:
        """Add a change to the number of queries that wait to be answered."""

    def request_answered(self, name: str, outcome: str) -> None:
        """Count a request of a worker by its name and outcome."""

    def requests_waiting(self, change: int) -> None:
        """Add a change to the number of requests of workers that wait to be applied."""

    def polls_held(self, count: int) -> None:
        """Set the number of polls of workers that wait for a task."""

    def tasks_sent(self, count: int) -> None:
        """Count the tasks that were sent to workers."""

    def claimed(self, count: int) -> None:
        """Record that a claim took `count` rows."""

    def published(self, seconds: float) -> None:
        """Record that publishing a batch took `seconds`, whether it succeeded or not."""

    def publish_failed(self, status: str, count: int) -> None:
        """Count messages that were not published, by their status."""

    def settled(self, table: str, outcome: str, count: int) -> None:
        """Count claimed rows of a table by how they were settled."""

    def fired_late(self, table: str, seconds: float, count: int = 1) -> None:
        """Record that `count` rows were fired `seconds` after they were due."""

    def slots_missed(self, count: int) -> None:
        """Count slots of schedules that were skipped because they were late."""

    def slots_not_started(self, reason: str, count: int) -> None:
        """Count slots of schedules that started no workflow, by the reason."""

    def leases_lost(self, count: int) -> None:
        """Count rows that were claimed again or changed before they could be settled."""

    def buried(self, table: str, count: int) -> None:
        """Count buried rows of a table."""

    def counted(self, table: str, state: str, count: int) -> None:
        """Set the number of rows of a table in a state."""

    def overdue(self, table: str, count: int, oldest_seconds: float) -> None:
        """Set the number of claimable rows of a table, and for how long the oldest has been claimable."""

    def event_limits_reached(self, count: int) -> None:
        """Set the number of limits `published_events` that are used up, so that events wait."""

    def clock_measured(self, offset_seconds: float) -> None:
        """Set how far the clock that decides what is due is ahead of this machine's clock."""

    def ticked(self, loop: str, seconds: float) -> None:
        """Record that a loop did a pass, which took `seconds`."""
