"""The answers of a JetStream with one command stream and one consumer, which a test can change."""

import json
from typing import Any


class ScriptedJetStream:
    """Answers the requests of the service to the API of JetStream."""

    def __init__(self) -> None:
        self.created = "2026-01-01T00:00:00.000000001Z"
        self.consumer: dict[str, Any] | None = None
        """The settings of the consumer; None if it does not exist."""
        self.last_sequence = self.delivered = self.settled = 0
        self.waiting = self.in_flight = self.pulls = 0
        """How many commands wait for their delivery, how many for their settlement, and how many pulls for commands."""
        self.is_down = False
        self.stored_at: str | None = None
        """When each message was stored; None if none can be read any more."""
        self.stored_later: dict[int, str] = {}
        """When other messages were stored, by their sequences."""
        self.requests: list[str] = []

    def answer(self, subject: str, body: bytes) -> dict[str, Any] | None:
        """Return the answer to a request, or None if it is not one to the API."""
        if not subject.startswith("$JS.API."):
            return None
        name = subject.removeprefix("$JS.API.").partition(".TIMER_CMD")[0]
        self.requests.append(name)
        if self.is_down:
            return _error(503, 10008, "temporarily unavailable")
        match name:
            case "STREAM.INFO":
                state = {"first_seq": 1, "last_seq": self.last_sequence, "messages": self.last_sequence}
                return {"created": self.created, "state": state}
            case "CONSUMER.INFO":
                return self._consumer_info()
            case "CONSUMER.DELETE":
                self.consumer = None
                return {}
            case "CONSUMER.DURABLE.CREATE":
                self.consumer = json.loads(body)["config"]
                return {}
            case "STREAM.MSG.GET":
                return self._message(json.loads(body)["seq"])
        return None

    def _consumer_info(self) -> dict[str, Any]:
        if self.consumer is None:
            return _error(404, 10014, "consumer not found")
        return {
            "config": self.consumer,
            "ack_floor": {"stream_seq": self.settled, "consumer_seq": self.settled},
            "delivered": {"stream_seq": self.delivered, "consumer_seq": self.delivered},
            "num_pending": self.waiting,
            "num_ack_pending": self.in_flight,
            "num_waiting": self.pulls,
        }

    def _message(self, sequence: int) -> dict[str, Any]:
        if self.stored_at is None or sequence > self.last_sequence:
            return _error(404, 10037, "no message found")
        return {"message": {"seq": sequence, "time": self.stored_later.get(sequence, self.stored_at)}}


def _error(http: int, code: int, description: str) -> dict[str, Any]:
    return {"error": {"code": http, "err_code": code, "description": description}}
