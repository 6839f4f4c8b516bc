"""The TCP proxy disturbs connections as its methods say."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.harness.tcp_proxy import GOOD, STALLED, TcpProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    """Yield the port of a server that sends back each byte, until the client ends its direction."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.fixture
async def proxy(echo_port: int) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(echo_port) as running:
        yield running


@pytest.fixture
async def client(proxy: TcpProxy) -> AsyncIterator[Streams]:
    streams = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield streams
    streams[1].close()


async def round_trip(client: Streams, data: bytes = b"hello") -> bytes:
    client[1].write(data)
    async with asyncio.timeout(5):
        return await client[0].readexactly(len(data))


async def fails(port: int) -> bool:
    """Return whether a new connection to the proxy ends without an answer."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    try:
        await round_trip(streams)
    except (OSError, asyncio.IncompleteReadError):
        return True
    finally:
        streams[1].close()
    return False


async def is_silent(client: Streams) -> bool:
    """Return whether no byte arrives for a moment."""
    try:
        async with asyncio.timeout(0.1):
            await client[0].read(1)
    except TimeoutError:
        return True
    return False


async def test_forwards_both_directions(proxy: TcpProxy, client: Streams) -> None:
    """Without a disturbance the proxy forwards every byte."""
    data = bytes(range(256)) * 4096
    assert await round_trip(client, data) == data
    assert (proxy.accepted, proxy.open_connections) == (1, 1)


async def test_stall_and_resume(proxy: TcpProxy, client: Streams) -> None:
    """A stalled link forwards nothing, on open and new connections. It forwards what waited when it is good again."""
    proxy.set_link(STALLED)
    client[1].write(b"hello")
    late = await asyncio.open_connection("127.0.0.1", proxy.port)
    late[1].write(b"late!")
    assert await is_silent(client)
    assert await is_silent(late)
    proxy.set_link(GOOD)
    async with asyncio.timeout(5):
        assert await client[0].readexactly(5) == b"hello"
        assert await late[0].readexactly(5) == b"late!"
    late[1].close()


async def test_stall_of_open_connections(proxy: TcpProxy, client: Streams) -> None:
    """Only the connections that are open stall. A new connection works."""
    await round_trip(client)
    proxy.stall_open_connections()
    client[1].write(b"hello")
    assert await is_silent(client)
    late = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await round_trip(late) == b"hello"
    late[1].close()


async def test_cut_with_rst(proxy: TcpProxy, client: Streams) -> None:
    """After a cut with RST the client gets an error."""
    await round_trip(client)
    proxy.cut(reset=True)
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionResetError):
            await client[0].read()


async def test_refuse(proxy: TcpProxy, client: Streams) -> None:
    """While the proxy refuses connections, open ones are cut and new ones end at once. Afterwards it serves again."""
    await round_trip(client)
    with proxy.refusing():
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await round_trip(client)
        assert await fails(proxy.port)
    late = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await round_trip(late) == b"hello"
    late[1].close()
