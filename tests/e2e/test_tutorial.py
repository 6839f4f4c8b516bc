"""docs/tutorial.md, as a reader plays it. `RECORD=1 pytest <this file>` makes its pictures again."""

import asyncio
import html
import os
import re
from pathlib import Path

import pytest

from tests.harness.browser import Browser
from tests.harness.processes import read_page, unused_port
from tests.harness.spawn import BIN
from tests.harness.tutorial import play
from tests.harness.waiting import until

DOCS = Path(__file__).parents[2] / "docs"
PORT = 9464
"""The port of the operations page in the tutorial. The test has another one."""
WIDTH = 1280
MOST_BYTES = 80_000
PICTURES = {
    "tutorial/timers.png": ["order-1", "Reached", "order-2", "Cancelled"],
    "tutorial/parked.png": ["FileNotFoundError", "timer-service events resubmit shop reports --all"],
    "tutorial/parcel.png": ["label-order-2", "signature", "open"],
}
"""What the operations page shows in each picture."""
RECORD = os.environ.get("RECORD")
_TAG = re.compile(r"<[^>]*>")


@pytest.mark.slow
@pytest.mark.timeout(240)  # the orders wait half a minute to be paid
async def test_tutorial(tmp_path: Path) -> None:
    """Each command of the tutorial works in an empty folder and prints what the tutorial shows. So does the page."""
    port = unused_port()
    settings = {name: value for name, value in os.environ.items() if not name.startswith("TIMER_")}
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    environment = {**settings, "PATH": path, "PYTHONUNBUFFERED": "1", "TIMER_HTTP_PORT": str(port)}
    pictures: dict[str, bytes] = {}

    async def show(picture: str, url: str) -> None:
        await until(lambda: shows(port, url, PICTURES[picture]), seconds=60, pause=0.1)
        pictures[picture] = await photograph(tmp_path / Path(picture).stem, url) if RECORD else b""

    (folder := tmp_path / "shop").mkdir()
    page = (DOCS / "tutorial.md").read_text("utf-8").replace(f":{PORT}", f":{port}")
    outputs = await play(page, folder, environment, show)
    assert "buy a label" not in outputs["second"], "the second worker repeats a step"
    assert [*pictures] == [*PICTURES]
    if RECORD:
        for name, png in pictures.items():
            (DOCS / name).write_bytes(png)


async def shows(port: int, url: str, words: list[str]) -> bool:
    """Return whether a page of the service has words."""
    _, text = await asyncio.to_thread(read_page, port, url.partition(f":{port}")[2])
    text = html.unescape(_TAG.sub("", text))
    return all(each in text for each in words)


async def photograph(folder: Path, url: str) -> bytes:
    """Return a picture of a page, without the empty space below."""
    async with Browser.open(folder) as browser:
        tab = await browser.tab()
        await tab.look(width=WIDTH, height=1)
        await tab.visit(url)
        await tab.look(width=WIDTH, height=await tab.run("document.documentElement.scrollHeight"))
        return await tab.screenshot()


def test_pictures() -> None:
    """Each picture has the width of a desktop, and is small."""
    for name in PICTURES:
        png = (DOCS / name).read_bytes()
        assert (int.from_bytes(png[16:20]), len(png) < MOST_BYTES) == (WIDTH, True), name
