"""The layout of graphs of jobs."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timer_service.ui.graph import MOST_ROWS, Drawing, Job, Need, draw, shorten


def jobs(**needs: str) -> list[Job]:
    """Return jobs. Each value has the names of the needs, with spaces between."""
    return [Job(name, name, "pending", [Need(each) for each in text.split()]) for name, text in needs.items()]


def drawn(found: list[Job]) -> Drawing:
    steps = draw(found)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            drawing: Drawing = stop.value
            return drawing


def test_unknown_needs_and_cycles() -> None:
    """Needs of unknown jobs and cycles are left out. Each job is drawn."""
    drawing = drawn(jobs(a="b", b="a", c="nobody", d="c nobody"))
    assert {box.job.name for box in drawing.boxes} == {"a", "b", "c", "d"}
    assert len(drawing.edges) == 1


@pytest.mark.parametrize("size", [1, MOST_ROWS, 1000])
def test_wide_graphs(size: int) -> None:
    """A graph as wide as it gets is drawn: all jobs at once, also if they all need one job, or one needs them all."""
    many = [Job(str(number), str(number), "pending") for number in range(size)]
    fan = [Job("first", "first", "pending"), *(each._replace(needs=[Need("first")]) for each in many)]
    funnel = [*many, Job("last", "last", "pending", [Need(each.name) for each in many])]
    for found in (many, fan, funnel):
        drawing = drawn(found)
        assert len({(box.x, box.y) for box in drawing.boxes}) == len(found)
        assert len(drawing.edges) == sum(len(job.needs) for job in found)
        assert Counter(box.x for box in drawing.boxes).most_common(1)[0][1] <= MOST_ROWS


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_every_graph(seed: int, size: int) -> None:
    """Boxes lie inside the drawing and never overlap, and each edge leads to the right."""
    chance = random.Random(seed)
    found = [
        Job(
            str(number), "x" * chance.randint(1, 60), "pending", [Need(str(chance.randrange(number)))] if number else []
        )
        for number in range(size)
    ]
    drawing = drawn(found)
    check(drawing)
    assert len(drawing.boxes) == size
    assert len(drawing.edges) == size - 1


def check(drawing: Drawing) -> None:
    for box in drawing.boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= drawing.width
        assert box.y + box.height <= drawing.height
    for one, other in itertools.combinations(drawing.boxes, 2):
        apart = one.x + one.width < other.x or other.x + other.width < one.x
        assert apart or abs(one.y - other.y) > one.height


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short", "short"),
        ("deploy-to-production-in-every-region", "deploy-to-pr\N{HORIZONTAL ELLIPSIS}very-region"),
        ("a\u202eb", "a\\u202eb"),
        pytest.param("日" * 39 + "ab", "日" * 6 + "\N{HORIZONTAL ELLIPSIS}" + "日" * 3 + "ab", id="wide characters"),
    ],
)
def test_shorten(name: str, text: str) -> None:
    """A long name loses its middle. Invisible characters are shown."""
    assert shorten(name) == text
