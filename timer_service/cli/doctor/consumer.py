"""The durable consumer of the command stream, and whether a service consumes the commands."""

from collections.abc import Mapping
from typing import Any

from timer_service.adapters.nats.delivery_check import check_delivery
from timer_service.cli.doctor.finding import Finding, Status

_FLOW = 'The "flow of commands" above names the reason. If it is ok, run doctor again.'
_REMEDY = "Then the commands that wait are handled. Commands that were lost come again with `timer-service replay`."


def check_consumer(name: str, info: Mapping[str, Any], pattern: str, *, runs: bool) -> Finding:
    """Check the consumer, as JetStream describes it. A service that runs always has a pull request open.

    `pattern`: the subjects of all commands. `runs`: a service that should consume commands answers on its own page.
    """
    check = f"consumer {name}"
    if "error" in info and runs:
        return Finding(check, Status.WARN, "does not exist, and the service that runs did not create it yet", _FLOW)
    if "error" in info:
        remedy = "The service creates it when it starts: run `timer-service serve`."
        return Finding(check, Status.WARN, "does not exist: no service has run here yet", remedy)
    commands = f"{info['num_pending']} commands wait, {info['num_ack_pending']} are being handled"
    if reason := check_delivery(info, pattern).reason:
        return Finding(check, Status.FAIL, f"{reason}; {commands}", _REMEDY)
    if not info["num_waiting"] and runs:
        text = f"the service runs, but takes no commands at the moment; {commands}"
        return Finding(check, Status.WARN, text, _FLOW)
    if not info["num_waiting"]:
        text = f"no service consumes the commands; {commands}"
        return Finding(check, Status.WARN, text, "Start the service: run `timer-service serve`.")
    return Finding(check, Status.OK, f"a service consumes the commands; {commands}")
