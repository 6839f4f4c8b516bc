"""A round trip to the broker that follows everything sent before it."""

from nats.aio.client import Client


async def barrier(connection: Client) -> None:
    """Return once the broker has taken all that was sent: the driver sends a flush ahead of what it holds back."""
    await connection.flush()
    await connection.flush()
