"""The durable consumer of the command stream, and whether a service consumes the commands."""

from collections.abc import Mapping
from typing import Any

from timer_service.adapters.nats.stream_upkeep import check_delivery
from timer_service.cli.doctor.finding import Finding, Status


def check_consumer(name: str, info: Mapping[str, Any]) -> Finding:
    """Check the consumer, as JetStream describes it. A service that runs always has a pull request open."""
    check = f"consumer {name}"
    if "error" in info:
        remedy = "The service creates it when it starts: run `timer-service serve`."
        return Finding(check, Status.WARN, "does not exist: no service has run here yet", remedy)
    commands = f"{info['num_pending']} commands wait, {info['num_ack_pending']} are being handled"
    if reason := check_delivery(info).reason:
        return Finding(check, Status.FAIL, f"{reason}; {commands}", "Until then, commands wait in the stream.")
    if not info["num_waiting"]:
        text = f"no service consumes the commands; {commands}"
        return Finding(check, Status.WARN, text, "Start the service: run `timer-service serve`.")
    return Finding(check, Status.OK, f"a service consumes the commands; {commands}")
