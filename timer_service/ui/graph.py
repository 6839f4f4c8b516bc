"""The layout of a graph of jobs: columns from left to right, each job right of the jobs that it needs. Pure.

It has the four steps of a layered layout: columns, points where long edges pass a column, the order within each column
(so that edges cross little), and heights (so that edges are straight where there is room).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len

from timer_service.core.requests.computing import Steps
from timer_service.ui.formats import visible

MOST_ROWS = 24
"""How many boxes a column has at most. A graph of 200 jobs at once becomes nine columns."""
_MOST_POINTS = 1500
"""With more points on long edges, edges are drawn straight behind the boxes."""
_SWEEPS = 10
_BOX_HEIGHT = 30
_BOX_GAP = 40
"""From the middle of a box to the middle of the next one."""
_EDGE_GAP = 12
_COLUMN_GAP = 60
_MARGIN = 12
_CELL = 7.6
"""The width of a character in the widest of the usual fonts."""
_LONGEST_TEXT = 24
_LEAST_TEXT = 8
_AROUND_TEXT = 38


class Job(NamedTuple):
    """A box of the graph: a job, or a group whose jobs are not known yet."""

    name: str
    """Identifies the box."""
    text: str
    """Its name as it is shown."""
    status: str
    needs: Sequence["Need"] = ()


class Need(NamedTuple):
    """An edge to a box."""

    name: str
    mood: str = ""
    """How it is drawn."""


class Box(NamedTuple):
    """A job with its place."""

    job: Job
    text: str
    """The name, shortened if it is long."""
    x: float
    y: float
    width: float
    height: float = _BOX_HEIGHT


class Edge(NamedTuple):
    """A line from a job to a job that needs it."""

    path: str
    """The points of an SVG path."""
    mood: str


class Drawing(NamedTuple):
    """A graph with the place of each part."""

    boxes: Sequence[Box]
    edges: Sequence[Edge]
    width: float
    height: float


class _Point(NamedTuple):
    """A place in a column: a box, or a point where a long edge passes."""

    column: int
    box: str | None = None
    """The name of the job; None if an edge passes."""


def draw(jobs: Sequence[Job]) -> Steps[Drawing]:
    """Return the layout of a graph. Needs of unknown jobs are left out, and so are needs that form a cycle."""
    by_name = {job.name: job for job in jobs}
    columns = assign_columns(jobs)
    yield
    points, chains = _points_and_chains(jobs, columns)
    rows = _Rows(points, chains)
    for sweep in range(_SWEEPS):
        rows.sort(forward=sweep % 2 == 0)
        yield
    for sweep in range(_SWEEPS):
        rows.straighten(forward=sweep % 2 == 0)
        yield
    return _place(by_name, rows, chains)


def assign_columns(jobs: Sequence[Job]) -> Mapping[str, int]:
    """Return the column of each job: the first one with room right of all that it needs, except in a cycle."""
    levels = _levels(jobs)
    needs = {job.name: [need.name for need in job.needs] for job in jobs}
    columns: dict[str, int] = {}
    filled: dict[int, int] = defaultdict(int)
    for name in sorted(levels, key=lambda name: levels[name]):  # stable: jobs of one level stay in their order
        columns_of_needs = [columns[each] for each in needs[name] if levels.get(each, math.inf) < levels[name]]
        column = 1 + max(columns_of_needs, default=-1)
        while filled[column] >= MOST_ROWS:
            column += 1
        columns[name] = column
        filled[column] += 1
    return columns


def _levels(jobs: Sequence[Job]) -> dict[str, int]:
    """Return the length of the longest way to each job. Jobs of a cycle come last."""
    known = {job.name for job in jobs}
    waiting = {job.name: {need.name for need in job.needs} & known for job in jobs}
    level = 0
    levels: dict[str, int] = {}
    while waiting:
        free = [name for name, needs in waiting.items() if not needs] or list(waiting)  # all, if there is a cycle
        for name in free:
            levels[name] = level
            del waiting[name]
        for needs in waiting.values():
            needs.difference_update(free)
        level += 1
    return levels


class _Chain(NamedTuple):
    """An edge as the points that it visits, one per column."""

    points: Sequence[int]
    """Their numbers: they are looked up often, and a number is found faster than a name."""
    mood: str


def _points_and_chains(jobs: Sequence[Job], columns: Mapping[str, int]) -> tuple[list[_Point], list[_Chain]]:
    """Return all points and edges. Each edge is a chain of the numbers of its points.

    An edge has a point in each column that it passes, so that boxes and other edges keep a distance from it.
    """
    points = [_Point(columns[job.name], job.name) for job in jobs]
    numbers = {job.name: number for number, job in enumerate(jobs)}
    edges = [
        (need, job.name)
        for job in jobs
        for need in job.needs
        if need.name in columns and columns[need.name] < columns[job.name]
    ]
    has_few_points = sum(columns[name] - columns[need.name] - 1 for need, name in edges) <= _MOST_POINTS
    chains = []
    for need, name in edges:
        passed = [_Point(column) for column in range(columns[need.name] + 1, columns[name])] if has_few_points else []
        between = range(len(points), len(points) + len(passed))
        points += passed
        chains.append(_Chain([numbers[need.name], *between, numbers[name]], need.mood))
    return points, chains


class _Rows:
    """The order and the height of the points of each column. A point is a number."""

    def __init__(self, points: Sequence[_Point], chains: Iterable[_Chain]) -> None:
        self.points = points
        self.columns: list[list[int]] = [[] for _ in range(1 + max((each.column for each in points), default=-1))]
        self.heights = [0.0] * len(points)
        self._halves = [(_EDGE_GAP if each.box is None else _BOX_GAP) / 2 for each in points]
        self._before: list[list[int]] = [[] for _ in points]
        self._after: list[list[int]] = [[] for _ in points]
        for number, point in enumerate(points):
            self.columns[point.column].append(number)
        for chain in chains:
            for one, other in pairwise(chain.points):
                self._after[one].append(other)
                self._before[other].append(one)
        for column in self.columns:
            self._stack(column)

    def sort(self, *, forward: bool) -> None:
        """Sort each column by the mean place of the neighbours in the columns before it, or after it."""
        for column in self.columns if forward else reversed(self.columns):
            places = dict(zip(column, self._wanted(column, forward=forward), strict=True))
            column.sort(key=places.__getitem__)
            self._stack(column)

    def straighten(self, *, forward: bool) -> None:
        """Move the points of each column to the mean height of their neighbours, as far as there is room.

        Points that are too close are pushed apart, once downwards and once upwards. The mean of both keeps the gaps.
        """
        for column in self.columns if forward else reversed(self.columns):
            wanted = self._wanted(column, forward=forward)
            gaps = [self._gap(one, other) for one, other in pairwise(column)]
            down = _push(wanted, gaps)
            up = _push([-height for height in reversed(wanted)], gaps[::-1])
            for point, low, high in zip(column, down, reversed(up), strict=True):
                self.heights[point] = (low - high) / 2

    def _wanted(self, column: Sequence[int], *, forward: bool) -> list[float]:
        """Return the mean height of the neighbours of each point, in the columns before it, or after it."""
        neighbours = self._before if forward else self._after
        means: list[float] = []
        for point in column:
            heights = [self.heights[each] for each in neighbours[point]] or [self.heights[point]]
            means.append(sum(heights) / len(heights))
        return means

    def _stack(self, column: Sequence[int]) -> None:
        """Set the heights of a column without space between its points, around the middle."""
        gaps = [self._gap(one, other) for one, other in pairwise(column)]
        height = -sum(gaps) / 2
        for point, gap in zip(column, [*gaps, 0.0], strict=True):
            self.heights[point] = height
            height += gap

    def _gap(self, one: int, other: int) -> float:
        """Return the least distance between the middles of two points."""
        return self._halves[one] + self._halves[other]


def _push(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Return the heights, each at least a gap below the one before."""
    pushed = list(wanted[:1])
    for height, gap in zip(wanted[1:], gaps, strict=True):
        pushed.append(max(height, pushed[-1] + gap))
    return pushed


def _place(jobs: Mapping[str, Job], rows: _Rows, chains: Sequence[_Chain]) -> Drawing:
    """Return the drawing: each column is as wide as its longest text, and heights count from the top."""
    texts = {name: shorten(job.text) for name, job in jobs.items()}
    middle = _BOX_HEIGHT / 2
    top = min(rows.heights, default=0) - middle - _MARGIN
    bottom = max(rows.heights, default=0) + middle + _MARGIN
    lefts, widths, x = [], [], float(_MARGIN)
    for column in rows.columns:
        names = [name for point in column if (name := rows.points[point].box) is not None]
        longest = max((cell_len(texts[name]) for name in names), default=0)
        width = round(max(longest, _LEAST_TEXT) * _CELL + _AROUND_TEXT)
        lefts.append(x)
        widths.append(width)
        x += width + _COLUMN_GAP
    boxes = [
        Box(jobs[name], texts[name], lefts[number], round(rows.heights[point] - top - middle, 1), widths[number])
        for number, column in enumerate(rows.columns)
        for point in column
        if (name := rows.points[point].box) is not None
    ]
    edges = [Edge(_path(chain.points, rows, lefts, widths, top), chain.mood) for chain in chains]
    return Drawing(boxes, edges, max(x - _COLUMN_GAP + _MARGIN, 0), round(bottom - top, 1))


def _path(points: Sequence[int], rows: _Rows, lefts: Sequence[float], widths: Sequence[float], top: float) -> str:
    """Return a curve from the right side of each point to the left side of the next one."""
    parts: list[str] = []
    for one, other in pairwise(points):
        before, after = rows.points[one].column, rows.points[other].column
        x, y = lefts[before] + widths[before], round(rows.heights[one] - top, 1)
        left, height = lefts[after], round(rows.heights[other] - top, 1)
        middle = round((x + left) / 2, 1)
        parts.append(f"{'L' if parts else 'M'}{x:g} {y:g}C{middle:g} {y:g} {middle:g} {height:g} {left:g} {height:g}")
    return "".join(parts)


def shorten(name: str) -> str:
    """Return a name that fits into a box. Its middle is left out if it is too long: ends often differ."""
    text: str = visible(name)
    if cell_len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    start, end = text[:half], text[-half + 1 :]
    while cell_len(start) + cell_len(end) >= _LONGEST_TEXT:
        start, end = start[:-1], end[1:]
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"
