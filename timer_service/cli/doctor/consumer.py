"""The consumer that reads the command stream, and whether a service reads."""

from collections.abc import Mapping
from typing import Any

from timer_service.cli.doctor.finding import Finding, Status

_FLOW = 'The "flow of commands" above names the reason. If it is ok, run doctor again.'


def check_consumer(name: str, info: Mapping[str, Any], *, runs: bool) -> Finding:
    """Check the consumer, as JetStream describes it. A service that reads always has a pull request open.

    `runs`: a service that should read commands answers on its own page.
    """
    check = f"consumer {name}"
    if "error" in info and runs:
        return Finding(check, Status.WARN, "does not exist, and the service that runs did not create it yet", _FLOW)
    if "error" in info:
        remedy = "The service creates it when it starts: run `timer-service serve`."
        return Finding(check, Status.WARN, "does not exist: no service has run here yet", remedy)
    commands = f"{info['num_pending']} commands are not read yet"
    if info.get("paused"):
        remedy = f"Resume it with `nats consumer resume {info['stream_name']} {name}`."
        return Finding(check, Status.FAIL, f"is paused until {info.get('pause_until')}; {commands}", remedy)
    if not info["num_waiting"] and runs:
        return Finding(check, Status.WARN, f"the service runs, but reads no commands at the moment; {commands}", _FLOW)
    if not info["num_waiting"]:
        text = f"no service reads the commands; {commands}"
        return Finding(check, Status.WARN, text, "Start the service: run `timer-service serve`.")
    return Finding(check, Status.OK, f"a service reads the commands; {commands}")
