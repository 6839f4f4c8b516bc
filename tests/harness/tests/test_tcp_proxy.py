"""The TCP proxy disturbs connections as its methods say: a test that relies on it would pass in vain otherwise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

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


@pytest.fixture
async def connect(proxy: TcpProxy) -> AsyncIterator[Callable[[], Awaitable[Streams]]]:
    """Yield a function that returns a connection that has sent a word."""
    opened: list[Streams] = []

    async def open_client() -> Streams:
        opened.append(await asyncio.open_connection("127.0.0.1", proxy.port))
        opened[-1][1].write(b"hello")
        return opened[-1]

    yield open_client
    for _, writer in opened:
        writer.close()


async def answers(client: Streams, seconds: float = 5) -> bool:
    """Return whether the word comes back."""
    try:
        async with asyncio.timeout(seconds):
            return await client[0].readexactly(5) == b"hello"
    except TimeoutError:
        return False


async def test_stall(proxy: TcpProxy, connect: Callable[[], Awaitable[Streams]]) -> None:
    """A stalled link forwards nothing, on open and new connections. It forwards what waited when it is good again."""
    first = await connect()
    assert await answers(first)
    proxy.set_link(STALLED)
    first[1].write(b"hello")
    late = await connect()
    assert [await answers(each, 0.1) for each in (first, late)] == [False, False]
    proxy.set_link(GOOD)
    assert [await answers(each) for each in (first, late)] == [True, True]
    proxy.stall_open_connections()
    first[1].write(b"hello")
    assert [await answers(first, 0.1), await answers(await connect())] == [False, True]


async def test_cut_and_refuse(proxy: TcpProxy, connect: Callable[[], Awaitable[Streams]]) -> None:
    """After a cut with RST the client gets an error. While the proxy refuses connections, new ones end at once."""
    client = await connect()
    assert await answers(client)
    proxy.cut(reset=True)
    with pytest.raises(ConnectionResetError):
        await client[0].read()
    with proxy.refusing(), pytest.raises((OSError, asyncio.IncompleteReadError)):
        await answers(await connect())
    assert await answers(await connect())
