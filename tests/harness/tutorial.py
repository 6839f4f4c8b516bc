"""Plays a tutorial as its reader does: saves the files, runs the commands in three terminals, and compares the output.

The text before a block says what the block is for. A block of Python names its file, as in "Save this as `shop.py`".
A block of commands or of output names its terminal: first, second or third. Otherwise the last named one is meant.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

_PATIENCE_SECONDS = 60
_BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$|^\[!\[[^\]]*\]\((?P<picture>[^)]*)\)\]", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"[Ss]ave this as `([\w.]+)`")
_TERMINAL = re.compile(r"(first|second|third)(?= terminal)")
_URL = re.compile(r"<(http://\S+)>")
_LEFT_OUT = "…"

ShowPicture = Callable[[str, str], Awaitable[None]]
"""Called with the path of a picture, and with the URL of the page that it shows."""


class Block(NamedTuple):
    """A block of a page."""

    language: str
    """`python`, `sh`, `picture`, or nothing for output."""
    text: str
    before: str
    """The text between the block before and this one."""


def read_blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page in Markdown."""
    end = 0
    for found in _BLOCK.finditer(page):
        before = page[end : found.start()]
        end = found.end()
        if found["picture"]:
            yield Block("picture", found["picture"], before)
        else:
            yield Block(found["language"], found["code"], before)


def is_shown(shown: str, output: str) -> bool:
    """Return whether each line that a page shows is a line of an output. `…` stands for any text."""
    patterns = (".*".join(map(re.escape, line.split(_LEFT_OUT))) for line in shown.splitlines())
    return all(re.search(f"^{pattern} *$", output, re.MULTILINE) for pattern in patterns)


class Terminal:
    """A terminal: it runs one block of commands at a time."""

    def __init__(self, log: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._folder = folder
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._script = ""

    async def run(self, script: str) -> None:
        """Run commands. What runs before is stopped with Ctrl-C."""
        await self.interrupt()
        self._script = script
        with self._log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *("bash", "-e", "-c", script),
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Wait until the commands have ended, and return their exit code."""
        assert self._process is not None
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await self._process.wait()

    async def interrupt(self) -> None:
        """Stop with Ctrl-C what runs. It must end without an error, unless it has killed itself."""
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGINT)
            assert await self.wait() == 0, self.output()

    async def kill(self) -> None:
        """Kill what runs."""
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def output(self) -> str:
        """Return the output of the commands. As in a shell, the name of the signal that killed them follows."""
        code = None if self._process is None else self._process.returncode
        killed = f"{signal.strsignal(-code)}\n" if code is not None and code < 0 else ""
        return self._log.read_text("utf-8") + killed

    async def until_prints(self, shown: str) -> None:
        """Wait for an output. Commands that only read run again until they print it."""
        reads = re.search(r" get .*\n\Z", self._script) is not None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not is_shown(shown, self.output()):
                    if reads:
                        await self.run(self._script.splitlines()[-1] + "\n")
                        await self.wait()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the page shows:\n{shown}\nprinted is:\n{self.output()}") from None


@asynccontextmanager
async def _terminals(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[dict[str, Terminal]]:
    """Open the terminals in a folder. At the end, their programs are stopped, the first one last."""
    terminals = {
        name: Terminal(folder.with_name(f"{name}.log"), folder, environment) for name in ("first", "second", "third")
    }
    async with AsyncExitStack() as stack:
        for terminal in terminals.values():
            stack.push_async_callback(terminal.kill)
        yield terminals
        for terminal in reversed(terminals.values()):
            await terminal.interrupt()


async def play(page: str, folder: Path, environment: Mapping[str, str], show: ShowPicture) -> Mapping[str, str]:
    """Do what a page says in an empty folder, and return the last output of each terminal.

    The commands that install the package are left out.
    """
    name, url = "first", ""
    async with _terminals(folder, environment) as terminals:
        for block in read_blocks(page):
            *_, name = [name, *_TERMINAL.findall(block.before)]
            *_, url = [url, *_URL.findall(block.before)]
            match block.language:
                case "picture":
                    await show(block.text, url)
                case "python":
                    (folder / _FILE.findall(block.before)[-1]).write_text(block.text, "utf-8")
                case "sh" if "pip install" not in block.text:
                    await terminals[name].run(block.text)
                    if name == "third":
                        assert await terminals[name].wait() == 0, terminals[name].output()
                case "":
                    await terminals[name].until_prints(block.text)
        return {name: terminal.output() for name, terminal in terminals.items()}
