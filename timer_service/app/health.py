"""The health of an instance: whether commands flow, events flow, and queries are answered."""

from collections.abc import Mapping
from dataclasses import dataclass

from timer_service.core.ports.health import HEALTHY, Health, worst
from timer_service.core.values.message import Kind


@dataclass(frozen=True, slots=True)
class Observed:
    """The health of each part of an instance at one moment."""

    broker: Health
    streams: Mapping[Kind, Health]
    reading: Health
    """Whether the database can be read."""
    writing: Health
    """Whether the database can be written. It is known only since the last attempt."""
    queries: Health = HEALTHY
    """Whether queries arrive."""
    requests: Health = HEALTHY
    """Whether the requests of workers arrive and are applied."""
    reader: Health = HEALTHY
    publishing: Health = HEALTHY
    workers: Health = HEALTHY


def flows(observed: Observed, role: str) -> dict[str, Health]:
    """Return the health of the flows that an instance of this role has, by name.

    The parts of each flow are in the order of cause and effect: the reason names the cause.
    """
    of = observed
    database = worst(of.reading, of.writing)
    streams = worst(of.streams[Kind.EVENT], of.streams[Kind.DEAD_LETTER])
    handles = {
        "commands": worst(
            of.broker,
            of.streams[Kind.COMMAND],
            database,
            of.reader,
        ),
        "queries": worst(of.broker, of.queries, of.reading),
        "requests": worst(of.broker, of.requests, database),
    }
    works = {"events": worst(of.broker, streams, of.publishing, database, of.workers)}
    match role:
        case "handler":
            return handles
        case "worker":
            return works
        case _:
            return {"commands": handles["commands"], **works, **handles}
