"""Sheets of any format as text: captions, tables with their heads, a line a row, and the cells of each."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from epicrag.connectors.rows import RowWriter, one_line
from epicrag.connectors.tables import is_head, joined_head

if TYPE_CHECKING:
    from epicrag.connectors.base import Watch
    from epicrag.connectors.draft import Draft

_LOOK_AHEAD = 200
"""Rows of a table that are seen before its first line is written."""
_MAX_HEAD_ROWS = 4
_MAX_CAPTION_CHARS = 120
_MAX_CAPTION_DEPTH = 3
_MAX_REPEATS = 1_000
_NOTE = re.compile(r"[(\[*†‡¹²³]|\w\)|.*[.;:,]$", re.DOTALL)
_YEAR = re.compile(r"(?:19|20)\d\d")
_DEFAULT_NAME = re.compile(
    r"(?:sheet|tabelle|feuil(?:le)?|hoja|foglio|planilha|blad|ark|taul|list|лист|シート|工作表)\s?\d*",
    re.IGNORECASE,
)


class Cell(NamedTuple):
    """A cell that holds something."""

    column: int
    """Counted from 0."""
    text: str
    is_number: bool = False
    """Is it a number, an amount or a date: something that is no name of a column?"""
    span: int = 1
    """How many columns it takes."""


class Row(NamedTuple):
    """A row that holds something."""

    number: int
    """Counted from 1."""
    cells: list[Cell]


class Merge(NamedTuple):
    """Cells made one, as (first row from 1, first column from 0, last row, last column)."""

    top: int
    left: int
    bottom: int
    right: int


def letters(column: int) -> str:
    """The name of a column counted from 0: A … Z, AA …"""
    name = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def merged(rows: Iterable[Row], merges: Iterable[Merge]) -> Iterator[Row]:
    """Yield the rows with merged cells spread: down over rows, whose every line then says what it is of,
    and noted as a span over columns."""
    waiting: dict[int, list[Merge]] = {}
    for merge in merges:
        waiting.setdefault(merge.top, []).append(merge)
    running: list[tuple[Merge, Cell]] = []
    for row in rows:
        running = [(merge, cell) for merge, cell in running if merge.bottom >= row.number]
        spans = {merge.left: merge for merge in waiting.pop(row.number, ())}
        cells = [
            cell._replace(span=spans[cell.column].right - cell.column + 1)
            if cell.column in spans
            else cell
            for cell in row.cells
        ]
        taken = {cell.column for cell in cells}
        below = [cell for merge, cell in running if merge.left not in taken]
        for cell in cells:
            own = spans.get(cell.column)
            if own and own.top < own.bottom <= own.top + _MAX_REPEATS:
                running.append((own, cell))
        # A row that holds nothing else is an empty line within a tall cell.
        if below and cells:
            cells = sorted([*cells, *below])
        yield Row(row.number, cells)


@dataclass(slots=True)
class _Block:
    """Rows without an empty one between them, or the first of them."""

    rows: list[Row]
    gap: int
    """How many empty rows stand above."""
    goes_on: bool = False

    @property
    def is_narrow(self) -> bool:
        """Has no row more than one cell?"""
        return all(len(row.cells) == 1 for row in self.rows)


class _Blocks:
    """Cuts rows into blocks, and looks one block ahead."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._held: Row | None = next(rows, None)
        self._last = 0
        self._peeked: _Block | None = None

    def next(self) -> _Block | None:
        """The next block; None behind the last."""
        block, self._peeked = self._peeked or self._read(), None
        return block

    def peek(self) -> _Block | None:
        """The block after the one that `next` gave."""
        self._peeked = self._peeked or self._read()
        return self._peeked

    def _read(self) -> _Block | None:
        if self._held is None:
            return None
        block = _Block([], self._held.number - self._last - 1)
        while self._held is not None and len(block.rows) < _LOOK_AHEAD:
            if block.rows and self._held.number != self._last + 1:
                return block
            block.rows.append(self._held)
            self._last = self._held.number
            self._held = next(self._rows, None)
        block.goes_on = self._held is not None and self._held.number == self._last + 1
        return block


@dataclass(slots=True)
class SheetWriter:
    """Writes one sheet into a draft."""

    draft: Draft
    watch: Watch
    name: str
    captions: list[str] = field(default_factory=list)
    """The lines that stand alone above tables."""
    _named: bool = False
    _depth: int = 0

    def write(self, rows: Iterable[Row]) -> None:
        """Write the rows of a sheet, the empty ones left out."""
        blocks = _Blocks(row for row in rows if row.cells)
        while (block := blocks.next()) is not None:
            self.watch.check(self.draft.length)
            if block.is_narrow:
                self._lines(block, blocks.peek())
                continue
            captions = _leading_captions(block)
            self._caption_lines(captions)
            block.rows = block.rows[len(captions) :]
            following = blocks.peek()
            if _is_head_alone(block, following):
                body = blocks.next()
                assert body is not None
                self._table(block.rows, body, blocks)
            else:
                n_head = _head_rows(block.rows)
                head, block.rows = block.rows[:n_head], block.rows[n_head:]
                self._table(head, block, blocks)
        self.draft.cell = None

    # --- lines that stand alone ---

    def _lines(self, block: _Block, following: _Block | None) -> None:
        """Write rows of a single cell: the captions of a table that follows, or text."""
        near = following is not None and not block.goes_on and following.gap <= 1
        if near and len(block.rows) <= _MAX_CAPTION_DEPTH and all(map(_is_caption, block.rows)):
            self._caption_lines(block.rows)
            return
        for row in block.rows:
            self._text(row)

    def _caption_lines(self, rows: list[Row]) -> None:
        for row in rows:
            if not _is_caption(row):
                self._text(row)
                continue
            cell = row.cells[0]
            self._begin(row)
            self.captions.append(one_line(cell.text))
            self.draft.cell = f"{letters(cell.column)}{row.number}"
            self.draft.open("heading")
            self.draft.write(one_line(cell.text))
            self.draft.close(2 + min(self._depth, _MAX_CAPTION_DEPTH - 1))
            self._depth += 1

    def _text(self, row: Row) -> None:
        cell = row.cells[0]
        self._begin(row)
        self.draft.cell = f"{letters(cell.column)}{row.number}"
        self.draft.open("paragraph", "\n\n" if len(cell.text) > 80 else "\n")
        self.draft.write(cell.text.strip())
        self.draft.close()

    def _begin(self, row: Row) -> None:
        """Write the sheet's name above what it holds, unless it is what the program called it."""
        if self._named:
            return
        self._named = True
        self.draft.leave_headings()
        if _DEFAULT_NAME.fullmatch(self.name.strip()):
            return
        self.draft.cell = f"{letters(row.cells[0].column)}{row.number}"
        self.draft.open("heading")
        self.draft.write(one_line(self.name))
        self.draft.close(1)

    # --- tables ---

    def _table(self, head: list[Row], body: _Block, blocks: _Blocks) -> None:
        """Write a table, however long its body goes on."""
        self._begin(head[0] if head else body.rows[0])
        used = {cell.column for row in [*head, *body.rows] for cell in row.cells}
        columns = sorted(used)
        above, names_of = _parted(head, body.rows)
        names = joined_head([_names(row, columns) for row in names_of]) if names_of else None
        first = head[0] if head else None
        cells = _cells_of(head, columns) if first else (None, None)
        writer = RowWriter(
            self.draft,
            names,
            cell=cells[0],
            last=cells[1],
            above=[_line(row) for row in above],
            spanning=True,
        )
        self._depth = 0
        block: _Block | None = body
        while block is not None:
            for row in block.rows:
                self.watch.check(self.draft.length)
                first_cell, last_cell = _cells_of([row], columns)
                writer.row(_texts(row, columns), cell=first_cell, last=last_cell)
            block = blocks.next() if block.goes_on else None
        writer.end()


def _is_caption(row: Row) -> bool:
    text = row.cells[0].text
    return (
        len(row.cells) == 1
        and not row.cells[0].is_number
        and len(text) <= _MAX_CAPTION_CHARS
        and not _NOTE.match(text)
    )


def _leading_captions(block: _Block) -> list[Row]:
    """The rows of a single cell above a table's first row of several."""
    at = next(at for at, row in enumerate(block.rows) if len(row.cells) > 1)
    if at and _is_group(block.rows[at - 1], block.rows[at]):
        at -= 1
    return block.rows[:at]


def _is_group(row: Row, below: Row) -> bool:
    """Is a row's only cell the name of some of the columns below it, rather than of all?"""
    return row.cells[0].span > 1 and below.cells[0].column not in _covered(row)


def _is_name(cell: Cell) -> bool:
    return not cell.is_number or bool(_YEAR.fullmatch(cell.text))


def _is_head_alone(block: _Block, following: _Block | None) -> bool:
    """Is a block the head of the table that follows behind an empty row?"""
    if following is None or following.gap > 1 or block.goes_on or len(block.rows) > _MAX_HEAD_ROWS:
        return False
    if not all(_is_name(cell) for row in block.rows for cell in row.cells):
        return False
    inside = {cell.column for cell in following.rows[0].cells}
    numbers = any(cell.is_number for cell in following.rows[0].cells)
    covered = _covered(block.rows[-1])
    return numbers and len(inside) > 1 and len(inside & covered) >= len(inside) - 1


def _head_rows(rows: list[Row]) -> int:
    """How many rows from the top name the columns of the rows below them."""
    named = 0
    while named < len(rows) and all(_is_name(cell) for cell in rows[named].cells):
        named += 1
    if named == 0 or len(rows) < 2:
        return 0
    if named == len(rows) or named > _MAX_HEAD_ROWS:
        return _text_head(rows)
    body = _columns_of(rows[named:])
    for n_head in range(1, named + 1):
        low = rows[n_head - 1]
        is_group = any(cell.span > 1 for cell in low.cells) and n_head < named
        covered = set().union(*map(_covered, rows[:n_head]))
        if not is_group and len(body - covered) <= (1 if min(body) not in covered else 0):
            return n_head
    half = 2 * len(body & _covered(rows[named - 1])) >= len(body)
    return named if half and named < _MAX_HEAD_ROWS else _text_head(rows)


def _text_head(rows: list[Row]) -> int:
    """Whether the first of many rows of text is a head."""
    columns = sorted({cell.column for row in rows for cell in row.cells})
    return int(is_head(_names(rows[0], columns), [_texts(row, columns) for row in rows[1:50]]))


def _columns_of(rows: list[Row]) -> set[int]:
    """The columns that at least a third of the rows fill."""
    counts: dict[int, int] = {}
    for row in rows:
        for cell in row.cells:
            counts[cell.column] = counts.get(cell.column, 0) + 1
    return {column for column, count in counts.items() if 3 * count >= len(rows)} or set(counts)


def _covered(row: Row) -> set[int]:
    return {cell.column + at for cell in row.cells for at in range(min(cell.span, 1_000))}


def _parted(head: list[Row], body: list[Row]) -> tuple[list[Row], list[Row]]:
    """Part the rows of a head: those that say something of the whole table, and those of its columns."""
    if len(head) < 2:
        return [], head
    width = len(_columns_of(body)) if body else 0
    above = []
    for row in head[:-1]:
        if any(cell.span > 1 for cell in row.cells) or 2 * len(row.cells) > width:
            break
        above.append(row)
    return above, head[len(above) :]


def _names(row: Row, columns: list[int]) -> list[str]:
    """A head row's names by column; a name over several columns is that of each."""
    names: Mapping[int, str] = {
        cell.column + at: cell.text for cell in row.cells for at in range(min(cell.span, 1_000))
    }
    return [names.get(column, "") for column in columns]


def _texts(row: Row, columns: list[int]) -> list[str]:
    texts = [""] * len(columns)
    for cell in row.cells:
        at = bisect_left(columns, cell.column)
        if at < len(columns) and columns[at] == cell.column:
            texts[at] = cell.text
        else:  # a column that no row above has filled
            texts.append(cell.text)
    return texts


def _line(row: Row) -> str:
    return " | ".join(one_line(cell.text) for cell in row.cells)


def _cells_of(rows: list[Row], columns: list[int]) -> tuple[str, str]:
    """The corners of some rows of a table: from their leftmost cell to the table's last column."""
    left = min(row.cells[0].column for row in rows)
    right = max(columns[-1], *(row.cells[-1].column for row in rows))
    return f"{letters(left)}{rows[0].number}", f"{letters(right)}{rows[-1].number}"
