"""The layout of a graph of jobs: columns from left to right, each job right of the jobs that it needs. Pure.

It has the four steps of a layered layout: columns, points where long edges pass a column, the order within each column
(so that edges cross little), and heights (so that edges are straight where there is room).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len

from timer_service.core.computing import Steps
from timer_service.ui.formats import visible

MOST_ROWS = 24
"""How many boxes a column has at most. A graph of 200 jobs at once becomes nine columns."""
_MOST_POINTS = 5000
"""With more points on long edges, edges are drawn straight behind the boxes."""
_SWEEPS = 10
_BOX_HEIGHT = 30
_BOX_GAP = 40
"""From the middle of a box to the middle of the next one."""
_EDGE_GAP = 12
_COLUMN_GAP = 60
_MARGIN = 12
_CELL = 7.3
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
    always: bool = False
    """Whether the job runs even if this one fails."""


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
    always: bool


class Drawing(NamedTuple):
    """A graph with the place of each part."""

    boxes: Sequence[Box]
    edges: Sequence[Edge]
    width: float
    height: float


class _Point(NamedTuple):
    """A place in a column: a box, or a point where a long edge passes."""

    name: str
    passes_to: str = ""
    column: int = 0

    @property
    def is_box(self) -> bool:
        return not self.passes_to


def draw(jobs: Sequence[Job]) -> Steps[Drawing]:
    """Return the layout of a graph. Needs of unknown jobs are left out, and so are needs that form a cycle."""
    by_name = {job.name: job for job in jobs}
    columns = assign_columns(jobs)
    yield
    chains = _chains(jobs, columns)
    rows = _Rows(jobs, columns, chains)
    for sweep in range(_SWEEPS):
        rows.sort(forward=sweep % 2 == 0)
        yield
    for sweep in range(_SWEEPS):
        rows.straighten(forward=sweep % 2 == 0)
        yield
    return _place(by_name, rows, chains)


def assign_columns(jobs: Sequence[Job]) -> Mapping[str, int]:
    """Return the column of each job: right of all that it needs, in a column with room."""
    levels = _levels(jobs)
    needs = {job.name: [need.name for need in job.needs] for job in jobs}
    columns: dict[str, int] = {}
    filled: dict[int, int] = defaultdict(int)
    for name in sorted(levels, key=lambda name: levels[name]):  # stable: jobs of one level stay in their order
        column = 1 + max((columns[each] for each in needs[name] if levels.get(each, 0) < levels[name]), default=-1)
        while filled[column] >= MOST_ROWS:
            column += 1
        columns[name] = column
        filled[column] += 1
    used = {column: number for number, column in enumerate(sorted(set(columns.values())))}
    return {name: used[column] for name, column in columns.items()}


def _levels(jobs: Sequence[Job]) -> dict[str, int]:
    """Return the length of the longest way to each job. Jobs of a cycle come last."""
    known = {job.name for job in jobs}
    waiting = {job.name: {need.name for need in job.needs} & known for job in jobs}
    level = 0
    levels: dict[str, int] = {}
    while waiting:
        free = [name for name, needs in waiting.items() if not needs] or list(waiting)
        for name in free:
            levels[name] = level
            del waiting[name]
        for needs in waiting.values():
            needs.difference_update(free)
        level += 1
    return levels


class _Chain(NamedTuple):
    """An edge as the points that it visits, one per column."""

    points: Sequence[_Point]
    always: bool


def _chains(jobs: Sequence[Job], columns: Mapping[str, int]) -> list[_Chain]:
    edges = [
        (need, job.name)
        for job in jobs
        for need in job.needs
        if need.name in columns and columns[need.name] < columns[job.name]
    ]
    length = sum(columns[name] - columns[need.name] - 1 for need, name in edges)
    return [_chain(need, name, columns, is_routed=length <= _MOST_POINTS) for need, name in edges]


def _chain(need: Need, name: str, columns: Mapping[str, int], *, is_routed: bool) -> _Chain:
    first, last = columns[need.name], columns[name]
    between = range(first + 1, last) if is_routed else ()
    passed = [_Point(need.name, name, column) for column in between]
    return _Chain([_Point(need.name, "", first), *passed, _Point(name, "", last)], need.always)


class _Rows:
    """The order and the height of the points of each column."""

    def __init__(self, jobs: Iterable[Job], columns: Mapping[str, int], chains: Iterable[_Chain]) -> None:
        chains = list(chains)
        self.columns: list[list[_Point]] = [[] for _ in range(1 + max(columns.values(), default=-1))]
        self.before: dict[_Point, list[_Point]] = defaultdict(list)
        self.after: dict[_Point, list[_Point]] = defaultdict(list)
        for job in jobs:
            self.columns[columns[job.name]].append(_Point(job.name, "", columns[job.name]))
        for chain in chains:
            for point in chain.points[1:-1]:
                self.columns[point.column].append(point)
            for one, other in pairwise(chain.points):
                self.after[one].append(other)
                self.before[other].append(one)
        self.heights: dict[_Point, float] = {}
        for column in self.columns:
            self._stack(column)

    def sort(self, *, forward: bool) -> None:
        """Sort each column by the mean place of the neighbours in the columns before it, or after it."""
        neighbours = self.before if forward else self.after
        for column in self.columns if forward else reversed(self.columns):
            places = {point: self._mean(neighbours[point], self.heights[point]) for point in column}
            column.sort(key=places.__getitem__)
            self._stack(column)

    def straighten(self, *, forward: bool) -> None:
        """Move the points of each column to the mean height of their neighbours, as far as there is room."""
        neighbours = self.before if forward else self.after
        for column in self.columns if forward else reversed(self.columns):
            wanted = [self._mean(neighbours[point], self.heights[point]) for point in column]
            gaps = [0.0, *(_gap(one, other) for one, other in pairwise(column))]
            down = list(_push(wanted, gaps))
            up = [-height for height in _push([-height for height in reversed(wanted)], [0.0, *reversed(gaps[1:])])]
            for point, low, high in zip(column, down, reversed(up), strict=True):
                self.heights[point] = (low + high) / 2

    def _mean(self, points: Sequence[_Point], default: float) -> float:
        return sum(self.heights[each] for each in points) / len(points) if points else default

    def _stack(self, column: Sequence[_Point]) -> None:
        """Set the heights of a column without space between its points, around the middle."""
        height = 0.0
        for number, point in enumerate(column):
            height += _gap(column[number - 1], point) if number else 0
            self.heights[point] = height
        for point in column:
            self.heights[point] -= height / 2


def _gap(one: _Point, other: _Point) -> float:
    """Return the least distance between the middles of two points."""
    return (_BOX_GAP if one.is_box else _EDGE_GAP) / 2 + (_BOX_GAP if other.is_box else _EDGE_GAP) / 2


def _push(wanted: Sequence[float], gaps: Sequence[float]) -> Iterator[float]:
    """Yield the heights, each at least a gap below the one before."""
    last = -float("inf")
    for height, gap in zip(wanted, gaps, strict=True):
        last = max(height, last + gap)
        yield last


def _place(jobs: Mapping[str, Job], rows: _Rows, chains: Sequence[_Chain]) -> Drawing:
    texts = {name: shorten(job.text) for name, job in jobs.items()}
    middle = _BOX_HEIGHT / 2
    top = min(rows.heights.values(), default=0) - middle - _MARGIN
    bottom = max(rows.heights.values(), default=0) + middle + _MARGIN
    lefts, widths, x = [], [], float(_MARGIN)
    for column in rows.columns:
        longest = max((cell_len(texts[point.name]) for point in column if point.is_box), default=0)
        width = round(max(longest, _LEAST_TEXT) * _CELL + _AROUND_TEXT)
        lefts.append(x)
        widths.append(width)
        x += width + _COLUMN_GAP
    boxes = [
        Box(
            jobs[each.name],
            texts[each.name],
            lefts[number],
            round(rows.heights[each] - top - middle, 1),
            width,
        )
        for number, (column, width) in enumerate(zip(rows.columns, widths, strict=True))
        for each in column
        if each.is_box
    ]
    edges = [Edge(_path(chain.points, rows, lefts, widths, top), chain.always) for chain in chains]
    return Drawing(boxes, edges, max(x - _COLUMN_GAP + _MARGIN, 0), round(bottom - top, 1))


def _path(points: Sequence[_Point], rows: _Rows, lefts: Sequence[float], widths: Sequence[float], top: float) -> str:
    parts: list[str] = []
    for one, other in pairwise(points):
        x, y = lefts[one.column] + widths[one.column], round(rows.heights[one] - top, 1)
        left, height = lefts[other.column], round(rows.heights[other] - top, 1)
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
