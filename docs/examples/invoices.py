"""FastStream reads the events itself, with a durable consumer (docs/receive.md).

    pip install faststream[cli,nats]
    faststream run --app-dir docs/examples invoices:app

FastStream acknowledges an event after the function has returned. It does not park events: look at its documentation
for what happens after an error.
"""

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub

from timer_service.client import find_broker
from timer_service.client.events import DueTimeReached, read_event

broker = NatsBroker(find_broker().url)
app = FastStream(broker)


@broker.subscriber(
    "timer.evt.v1.shop.due-time-reached",
    stream=JStream("TIMER_EVT", declare=False),
    durable="invoices",
    pull_sub=PullSub(batch_size=10),
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
async def send_invoice(message: NatsMessage) -> None:
    """Print the timer of an event."""
    event = read_event(message.body)
    if isinstance(event, DueTimeReached):
        print("invoice for", event.timer_id, flush=True)
