"""Reading a stream as its users do."""

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig


async def read(js: JetStreamContext, stream: str, subject: str = ">") -> list[Msg]:
    """Read all messages that a stream holds of a subject."""
    expected = (await js.stream_info(stream, subjects_filter=subject)).state.subjects or {}
    left = sum(expected.values())
    if not left:
        return []
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await js.pull_subscribe(subject, stream=stream, config=config)
    messages: list[Msg] = []
    while len(messages) < left:
        messages += await subscription.fetch(min(1000, left - len(messages)), timeout=5)
    await subscription.unsubscribe()
    return messages
