"""A model of parked events, and the comparison of the service with it."""

import json
from collections import Counter
from typing import Any, NamedTuple

from tests.simulation.service import SentCommand, Service


class ParkedName(NamedTuple):
    """The key of a parked event."""

    tenant: str
    consumer: str
    event: str


class _Parked(NamedTuple):
    body: dict[str, Any]
    reason: str
    attempts: int


class ParkedChecker:
    """Applies commands to the model of parked events."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parked: dict[ParkedName, _Parked] = {}
        self._resubmitted = Counter[tuple[str, str, str]]()
        """The events that a consumer of a tenant must get."""

    def command(self, sent: SentCommand) -> str:
        """Apply one command to the model and return its outcome."""
        fields = sent.fields
        if sent.type == "ParkEvent":
            name = ParkedName(sent.tenant, fields["consumer"], fields["event"]["id"])
            if name in self._parked:
                return "unchanged"
            self._parked[name] = _Parked(fields["event"], fields["reason"], fields["attempts"])
            return "parked"
        name = ParkedName(sent.tenant, fields["consumer"], fields["eventId"])
        if (parked := self._parked.pop(name, None)) is None:
            return "not_found"
        if sent.type == "DropEvent":
            return "dropped"
        self._resubmitted[name.tenant, name.consumer, json.dumps(parked.body, sort_keys=True)] += 1
        return "resubmitted"

    def check(self) -> None:
        """Assert that the table equals the model."""
        found = {
            ParkedName(row["tenant_id"], row["consumer"], row["event_id"]): _Parked(
                json.loads(row["body"]), row["reason"], row["attempts"]
            )
            for row in self._service.rows("parked_events")
        }
        assert found == self._parked

    def check_events(self) -> None:
        """Assert that each resubmitted event was published to its consumer, once for each resubmit."""
        messages = [each for each in self._service.broker.events if each.address.message == "resubmitted"]
        bodies = [json.dumps(json.loads(each.body), sort_keys=True) for each in messages]
        found = Counter(
            (each.address.tenant, each.address.topic, body) for each, body in zip(messages, bodies, strict=True)
        )
        assert found == self._resubmitted, f"{found}, not {self._resubmitted}"

    def check_deleted(self) -> None:
        """Assert that retention deleted the parked events."""
        assert self._service.rows("parked_events") == []
