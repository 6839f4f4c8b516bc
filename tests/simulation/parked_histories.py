"""Draws commands on few parked events, so that many commands are about the same one."""

from hypothesis import strategies as st

from tests.simulation.service import SentCommand

_KINDS = ["ParkEvent", "ParkEvent", "ParkEvent", "ResubmitEvent", "ResubmitEvent", "DropEvent"]


@st.composite
def parked_commands(draw: st.DrawFn, most: int = 10) -> list[SentCommand]:
    """Draw commands on two events of two consumers. `most` limits their number."""
    history = []
    for number in range(draw(st.integers(1, most))):
        kind, consumer = draw(st.sampled_from(_KINDS)), draw(st.sampled_from(["orders", "orders", "Billing_2"]))
        event = draw(st.sampled_from(["e1", "e1", "e2"]))
        if kind == "ParkEvent":
            body = {"id": event, "type": "Parked", "extra": number, "payload": {"text": "x" * number}}
            fields = {"consumer": consumer, "event": body, "reason": f"reason {number}", "attempts": number + 1}
            history.append(SentCommand(kind, "acme", fields))
        else:
            history.append(SentCommand(kind, "acme", {"consumer": consumer, "eventId": event}))
    return history
