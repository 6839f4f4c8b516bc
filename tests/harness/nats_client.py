"""Helpers for the NATS connections of tests."""

from collections.abc import Mapping

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig


async def read_stream(js: JetStreamContext, stream: str, subject: str = ">") -> list[Msg]:
    """Return all messages of a stream that match a subject."""
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


async def read_headers(js: JetStreamContext, stream: str) -> list[Mapping[str, str]]:
    """Return the headers of all messages of a stream, without the bodies, which may be large."""
    left = (await js.stream_info(stream)).state.messages
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, headers_only=True)
    subscription = await js.pull_subscribe(">", stream=stream, config=config)
    headers: list[Mapping[str, str]] = []
    while len(headers) < left:
        fetched = await subscription.fetch(min(1000, left - len(headers)), timeout=5)
        headers += [message.headers or {} for message in fetched]
    await subscription.unsubscribe()
    return headers


async def ignore(_: Exception) -> None:
    """Ignore connection errors, because tests disturb the broker."""


async def round_trip(connection: Client) -> None:
    """Return after the broker has processed everything that the connection sent before."""
    await connection.flush()
    await connection.flush()  # the driver can send the first flush before its buffered messages
