"""Small charts as points of SVG. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 240
HEIGHT = 48
_TOP = 3
_LEAST_BAR = 1.5
"""A bar of one among thousands must be visible too."""


class Bar(NamedTuple):
    """One bar of a chart."""

    x: float
    y: float
    width: float
    height: float


def bars(values: Sequence[float | None]) -> list[Bar]:
    """Return a bar for each value that is not 0 or None. The largest one has the full height."""
    step, highest = WIDTH / max(len(values), 1), max((value or 0 for value in values), default=0)
    heights = [max((value or 0) * (HEIGHT - _TOP) / highest, _LEAST_BAR) if value else 0 for value in values]
    return [
        Bar(round(number * step + step * 0.15, 2), round(HEIGHT - height, 2), round(step * 0.7, 2), round(height, 2))
        for number, height in enumerate(heights)
        if height > 0
    ]


def lines(values: Sequence[float | None], highest: float) -> list[str]:
    """Return the points of each line without a gap. A single value becomes a short line."""
    step = WIDTH / max(len(values), 1)
    found: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            found.append([])
            continue
        y = round(HEIGHT - 1 - value * (HEIGHT - _TOP - 1) / highest, 2) if highest else HEIGHT - 1
        found[-1] += [f"{round(number * step, 2)},{y}", f"{round((number + 1) * step, 2)},{y}"]
    return [" ".join(points) for points in found if points]


def highest(*series: Sequence[float | None]) -> float:
    """Return the largest of all values, or 0."""
    return max((value or 0 for values in series for value in values), default=0)
