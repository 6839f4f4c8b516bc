"""Which events a consumer gets."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import NamedTuple

from timer_service.client.checks import check_name, check_tenant, check_topic, check_type, optional
from timer_service.client.events import EVENTS, WITH_TOPIC, Event, message_of

RESUBMITTED = "resubmitted"
"""In place of the message in the address of an event that the service sends again to one consumer."""


class Filter(NamedTuple):
    """Events of a class, with a topic or, if it is None, with every topic and with none."""

    kind: type[Event]
    topic: str | None = None


class Consumer(NamedTuple):
    """The consumer of a tenant, and where it reads."""

    tenant: str
    name: str
    filters: Sequence[Filter]
    stream: str | None = None
    """The stream that the operator has made for the tenant, with a consumer. None: the stream of all events."""
    from_start: bool = False
    ack_wait: timedelta = timedelta(seconds=30)

    @property
    def key(self) -> str:
        """A name that no consumer of another tenant has. `~` cannot occur in a tenant."""
        return f"{self.tenant}~{self.name}"


def check_consumer(
    tenant: str,
    name: str,
    filters: Iterable[type[Event] | Filter],
    *,
    stream: str | None,
    from_start: bool,
    ack_wait: timedelta,
) -> Consumer:
    """Return a consumer. Raises ValueError with the name of a wrong argument. Without filters it gets every event."""
    found = [each if isinstance(each, Filter) else Filter(each) for each in filters] or [Filter(Event)]
    for each in found:
        check_filter("events", each)
    check_type("ack_wait", ack_wait, timedelta, "a timedelta")
    check_type("from_start", from_start, bool, "a bool")
    if not timedelta(seconds=1) <= ack_wait <= timedelta(minutes=10):
        raise ValueError("ack_wait must lie between 1 second and 10 minutes")
    stream = optional(check_name, "stream", stream, 255)
    return Consumer(check_tenant(tenant), check_name("name", name), found, stream, from_start, ack_wait)


def check_filter(argument: str, wanted: Filter) -> None:
    """Raise ValueError if there are no such events, or if they have no topic. `argument` names the class."""
    kind, topic = wanted
    if kind is not Event and kind not in EVENTS:
        raise ValueError(f"{argument} must be a class of events, such as DueTimeReached")
    if optional(check_topic, "topic", topic) is not None and kind not in WITH_TOPIC:
        raise ValueError(f"topic must be left out for {kind.__name__}, which has no topic")


def subject_parts(consumer: Consumer) -> list[str]:
    """Return what the subjects of the wanted events have after the tenant. No two of them overlap.

    What is sent again to this consumer is always wanted.
    """
    wanted = {(RESUBMITTED, consumer.name), *(part for each in consumer.filters for part in _parts(each))}
    return sorted(map(".".join, uncovered(wanted)))


def _parts(wanted: Filter) -> list[tuple[str, ...]]:
    if wanted.topic is not None:
        return [(message_of(wanted.kind), wanted.topic)]
    if wanted.kind is Event:
        return [("*",), *((message_of(each), "*") for each in WITH_TOPIC)]
    message = message_of(wanted.kind)
    return [(message,), (message, "*")] if wanted.kind in WITH_TOPIC else [(message,)]


def uncovered(patterns: AbstractSet[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the patterns without those that another one covers. Together they match the same subjects."""
    return {each for each in patterns if not any(covers(other, each) for other in patterns - {each})}


def covers(pattern: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether a pattern matches whatever another one matches."""
    return len(pattern) == len(other) and all(mine in {"*", yours} for mine, yours in zip(pattern, other, strict=True))
