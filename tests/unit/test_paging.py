"""Pages of lists that are too long for one reply."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.paging import read_cursor, read_page


class Shelf:
    """Numbered items of one size. It counts the items that were read and viewed."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self._size = size
        self.reads: list[int] = []
        self.viewed = 0

    async def read(self, after: Sequence[int], limit: int) -> Sequence[int]:
        (start,) = after
        found = range(start + 1, min(start + 1 + limit, self.count))
        self.reads.append(len(found))
        return found

    def view(self, number: int) -> Mapping[str, Any]:
        self.viewed += 1
        return {"number": number, "\u00e9" * self._size: None}

    async def pages(self, limit: int) -> list[list[int]]:
        """Return the numbers of each page."""
        found: list[list[int]] = []
        after: Sequence[int] = [-1]
        while True:
            page = await self.page(after, limit)
            found.append([each["number"] for each in page["things"]])
            if "cursor" not in page:
                return found
            after = read_cursor(page["cursor"], int)

    async def page(self, after: Sequence[int], limit: int, end: Sequence[int] | None = None) -> Mapping[str, Any]:
        page = await read_page(
            "things", self.read, after=after, limit=limit, view=self.view, cursor_of=lambda n: [n], end=end
        )
        found: dict[str, Any] = from_json(page.text)
        return found


@pytest.mark.parametrize(("limit", "count"), list(product([1, 99, 100, 101], [0, 1, 99, 100, 101, 199, 200, 201])))
async def test_pages(limit: int, count: int) -> None:
    """The pages have every item once and in order. All pages but the last are full and have a cursor."""
    wanted = list(range(count))
    assert await Shelf(count, 1).pages(limit) == [wanted[at : at + limit] for at in range(0, max(1, count), limit)]


async def test_reading_stops_when_the_page_is_full() -> None:
    """Of 1,000 large items, one read returns 8, and one item more than fits on the page is viewed."""
    shelf = Shelf(1000, 60_000)
    found = await shelf.page([-1], 1000)
    assert (shelf.reads, len(found["things"]), shelf.viewed) == ([8], 4, 5)
    assert (await Shelf(9, 60_000).pages(1000))[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("size", [0, 40, 5_000, 130_000, 262_000, 400_000])
async def test_a_page_fits_into_a_message(size: int) -> None:
    """A page fits into a message with room for the other fields. A very large item has a page of its own."""
    found = await Shelf(1500, size).page([-1], 1000)
    assert len(to_json(found)) <= max(MAX_MESSAGE_BYTES // 2, size * 2) + 200
    assert len(found["things"]) >= 1


@pytest.mark.parametrize("count", [0, 3])
async def test_reading_that_stops_early(count: int) -> None:
    """If reading stops at an end behind which more items may be, the page has its cursor, also without any item."""
    found = await Shelf(count, 1).page([-1], 1000, end=[70])
    assert (len(found["things"]), read_cursor(found["cursor"], int)) == (count, [70])


async def test_other_tasks_run_between_large_items() -> None:
    """A page of large items does not hold up other tasks until it is complete."""
    other = asyncio.Event()
    asyncio.get_running_loop().call_soon(other.set)
    await Shelf(2, 60_000).page([-1], 1000)
    assert other.is_set()
