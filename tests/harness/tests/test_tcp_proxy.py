"""The TCP proxy disturbs connections as its methods say: a test that relies on it would pass in vain otherwise."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.harness.tcp_proxy import GOOD, STALLED, TcpProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """Yield a proxy of a server that sends back each byte."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with TcpProxy(server.sockets[0].getsockname()[1]) as running:
        yield running
    server.close()
    await server.wait_closed()


async def open_client(proxy: TcpProxy) -> Streams:
    """Return a connection that has sent a word."""
    streams = await asyncio.open_connection("127.0.0.1", proxy.port)
    streams[1].write(b"hello")
    return streams


async def answers(client: Streams, seconds: float = 5) -> bool:
    """Return whether the word comes back."""
    try:
        async with asyncio.timeout(seconds):
            return await client[0].readexactly(5) == b"hello"
    except TimeoutError:
        return False


async def test_stall(proxy: TcpProxy) -> None:
    """A stalled link forwards nothing, on open and new connections. It forwards what waited when it is good again."""
    first = await open_client(proxy)
    assert await answers(first)
    proxy.set_link(STALLED)
    first[1].write(b"hello")
    late = await open_client(proxy)
    assert [await answers(each, 0.1) for each in (first, late)] == [False, False]
    proxy.set_link(GOOD)
    assert [await answers(each) for each in (first, late)] == [True, True]
    proxy.stall_open_connections()
    first[1].write(b"hello")
    assert [await answers(first, 0.1), await answers(await open_client(proxy))] == [False, True]


async def test_cut_and_refuse(proxy: TcpProxy) -> None:
    """After a cut with RST the client gets an error. While the proxy refuses connections, new ones end at once."""
    client = await open_client(proxy)
    assert await answers(client)
    proxy.cut(reset=True)
    with pytest.raises(ConnectionResetError):
        await client[0].read()
    with proxy.refusing(), pytest.raises((OSError, asyncio.IncompleteReadError)):
        await answers(await open_client(proxy))
    assert await answers(await open_client(proxy))
