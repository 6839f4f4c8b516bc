"""A headless Chromium, driven over its debugging pipe."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_SECONDS = 60
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update"),
    *("--remote-debugging-pipe", "about:blank"),
)


def require_chromium() -> str:
    """Return the path of Chromium. Skip the test if there is none, or fail if CI is set."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is not None:
        return found
    reason = f"no browser is installed: none of {', '.join(_NAMES)} is on PATH (Debian: apt-get install chromium)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Tab:
    """One tab of the browser. It notes each error of the console, each failed script and each violated policy."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self.errors: list[str] = []
        self._browser = browser
        self._session = session
        self._loaded = asyncio.Event()

    async def send(self, method: str, **parameters: Any) -> Any:
        """Send a command of the debugging protocol and return the result."""
        return await self._browser.send(method, self._session, **parameters)

    async def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size, and the colours that the reader prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def before_scripts(self, script: str) -> None:
        """Run a script before those of each page that is opened from now on."""
        await self.send("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def visit(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        done = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def screenshot(self) -> bytes:
        """Return the visible part of the page as a PNG file."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])

    def note(self, method: str, message: Any) -> None:
        """Note an event of the browser."""
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Log.entryAdded" if message["entry"]["level"] in {"error", "warning"}:
                self.errors.append(message["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(message["args"]))


class Browser:
    """A running browser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tabs: dict[str, Tab] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator["Browser"]:
        """Start a browser with its files in a folder, and end it."""
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        options = [f"--user-data-dir={folder}", *_OPTIONS]
        # A shell gives the pipes the numbers 3 and 4, which Chromium expects.
        script = f'exec "$0" "$@" 3<&{their_input} 4>&{their_output}'
        process = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", script, require_chromium(), *options),
            pass_fds=(their_input, their_output),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(their_input)
        os.close(their_output)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**26)
        reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_input))
        writing, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(our_output, "wb"))
        browser = cls(reader, asyncio.StreamWriter(writing, protocol, None, loop))
        listening = asyncio.create_task(browser._listen())
        try:
            yield browser
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            listening.cancel()
            reading.close()
            writing.close()
            with suppress(asyncio.CancelledError):
                await listening

    async def tab(self) -> Tab:
        """Open a tab."""
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await tab.send(f"{domain}.enable")
        return tab

    async def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Send a command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reply = await answer
        assert "error" not in reply, reply
        return reply["result"]

    async def _listen(self) -> None:
        while True:
            try:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in message:
                if not (answer := self._answers.pop(message["id"])).done():  # its command may have timed out
                    answer.set_result(message)
            elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.note(message["method"], message["params"])


def distinct_lines(png: bytes) -> int:
    """Return how many different lines of pixels a PNG file has. A blank page has one or two."""
    width = int.from_bytes(png[16:20])
    channels = {2: 3, 6: 4}[png[25]]
    data, place = b"", 8
    while place < len(png):
        length, kind = int.from_bytes(png[place : place + 4]), png[place + 4 : place + 8]
        data += png[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += length + 12
    pixels, size = zlib.decompress(data), width * channels + 1
    return len({pixels[start + 1 : start + size] for start in range(0, len(pixels), size)})
