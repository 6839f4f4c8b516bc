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
    step, largest = WIDTH / max(len(values), 1), highest(values)
    found: list[Bar] = []
    for number, value in enumerate(values):
        if value:
            height = max(value * (HEIGHT - _TOP) / largest, _LEAST_BAR)
            x, y = (number + 0.15) * step, HEIGHT - height
            found.append(Bar(round(x, 2), round(y, 2), round(0.7 * step, 2), round(height, 2)))
    return found


def lines(values: Sequence[float | None], largest: float) -> list[str]:
    """Return the points of each line without a gap. `largest` has the full height. Each value is a step."""
    step = WIDTH / max(len(values), 1)
    found: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            found.append([])
            continue
        y = round(HEIGHT - 1 - value * (HEIGHT - _TOP - 1) / largest, 2) if largest else HEIGHT - 1
        found[-1] += [f"{round(number * step, 2)},{y}", f"{round((number + 1) * step, 2)},{y}"]
    return [" ".join(points) for points in found if points]


def highest(*series: Sequence[float | None]) -> float:
    """Return the largest of all values, or 0."""
    return max((value or 0 for values in series for value in values), default=0)
