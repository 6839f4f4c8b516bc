"""Aligned tables that fit the terminal."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len

from timer_service.cli.output.text import one_line, style

_GAP = "  "
_SHORTEST_ID = 12
_SHORTEST_TEXT = 24

Row = Sequence[str]


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


class Table:
    """Rows below a head, with one column of ids and one of statuses; the last column is free text.

    Nothing is cut. If the table has a width, an id that is longer than its column gets a line of its own, which may be
    longer than the width. The free text is wrapped between words: in its column, or below the row if its column would
    be narrow.
    """

    def __init__(
        self,
        head: Row,
        rows: Sequence[Row],
        width: int | None,
        *,
        id_column: int,
        status_column: int,
        colours: Mapping[str, str],
    ) -> None:
        """`colours` has the colour of a status; a status that is not in it has none."""
        self._head = head
        self._rows = rows = [[one_line(cell) for cell in row] for row in rows]
        self._width = width
        self._id_column = id_column
        self._status_column = status_column
        self._colours = colours
        *self._widths, text_width = (max(cell_len(row[column]) for row in [head, *rows]) for column in range(len(head)))
        if width is not None:
            others = len(_GAP) * (len(self._widths) - 1) + sum(self._widths) - self._widths[id_column]
            self._widths[id_column] = min(self._widths[id_column], max(width - others, _SHORTEST_ID))
        self._text_at = sum(self._widths) + len(_GAP) * len(self._widths)
        self._has_text_column = width is None or self._text_at + min(text_width, _SHORTEST_TEXT) <= width

    def lines(self) -> Iterator[str]:
        """Return the lines of the head and of each row."""
        *titles, text_title = self._head
        head = self._aligned(titles) + (_GAP + text_title if self._has_text_column else "")
        yield style(head.rstrip(), bold=True)
        for row in self._rows:
            yield from self._row_lines(row)

    def _row_lines(self, row: Row) -> Iterator[str]:
        *cells, text = row
        after_id = self._id_column + 1
        if cell_len(cells[self._id_column]) > self._widths[self._id_column]:
            yield self._aligned(cells[:after_id])
            cells[:after_id] = [""] * after_id
        line = self._aligned(cells)
        if self._has_text_column:
            first, *more = _wrap(text, None if self._width is None else self._width - self._text_at)
            yield f"{line}{_GAP}{first}".rstrip()
            yield from (" " * self._text_at + part for part in more)
        else:
            yield line.rstrip()
            if text and self._width is not None:
                yield from (_GAP + part for part in _wrap(text, self._width - len(_GAP)))

    def _aligned(self, cells: Row) -> str:
        return _GAP.join(self._cell(column, text) for column, text in enumerate(cells))

    def _cell(self, column: int, text: str) -> str:
        padding = " " * (self._widths[column] - cell_len(text))
        return (style(text, colour=self._colours.get(text)) if column == self._status_column else text) + padding


def _wrap(text: str, width: int | None) -> list[str]:
    """Break a text between words. Returns at least one line; only a single word can be longer than `width`."""
    if width is None:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
