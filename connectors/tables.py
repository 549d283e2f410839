"""Tables of documents: their cells, and whether their first rows are a head or rows as any other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epicrag.connectors.rows import RowWriter, one_line

if TYPE_CHECKING:
    from epicrag.connectors.base import Watch
    from epicrag.connectors.draft import Draft

_NUMBER = re.compile(r"[-+(]?[\s$€£¥]*[\d.,' \u00a0\u202f]*\d[\d.,' \u00a0\u202f]*[\s%)€$£¥]*")
_YEAR = re.compile(r"(?:19|20)\d\d")
_SENTENCE = re.compile(r"[。、！？，；]$|.{40}[.!?,;]$")
_MAX_NAME_CHARS = 120
_MAX_HEAD_ROWS = 3


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a row: its text, and how many columns it takes."""

    text: str
    span: int = 1


@dataclass(slots=True)
class TableRow:
    """A row; a cell that only continues another one is there, without a text."""

    cells: list[TableCell] = field(default_factory=list)
    is_head: bool = False
    """Does the file say that it is a row of the head?"""

    def texts(self) -> list[str]:
        """The texts by column: what spans several stands in the first of them."""
        return [text for cell in self.cells for text in [cell.text, *[""] * (cell.span - 1)]]

    def names(self) -> list[str]:
        """The texts by column, as names: what spans several is the name of each of them."""
        return [cell.text for cell in self.cells for _ in range(cell.span)]


def write_table(draft: Draft, rows: Sequence[TableRow], watch: Watch) -> None:
    """Write the rows that hold something, the head first."""
    rows = [row for row in rows if any(cell.text for cell in row.cells)]
    n_head = _head_rows(rows)
    head = joined_head([row.names() for row in rows[:n_head]]) if n_head else None
    with RowWriter(draft, head, spanning=True) as writer:
        for row in rows[n_head:]:
            watch.check(draft.length)
            writer.row(row.texts())


def _head_rows(rows: Sequence[TableRow]) -> int:
    """How many rows from the top name the columns."""
    marked = 0
    while marked < min(len(rows), _MAX_HEAD_ROWS) and rows[marked].is_head:
        marked += 1
    if marked and marked < len(rows):
        return marked
    # Names above several columns want the row below, which names each of them.
    grouped = int(len(rows) > 3 and any(cell.span > 1 for cell in rows[0].cells if cell.text))
    head = joined_head([row.names() for row in rows[: grouped + 1]])
    if len(rows) < grouped + 2 or not is_head(
        head, [row.texts() for row in rows[grouped + 1 : 50]]
    ):
        return 0
    return grouped + 1


def is_number(text: str) -> bool:
    """Is a cell's text a number, an amount or a percentage?"""
    return bool(_NUMBER.fullmatch(text.strip())) if text.strip() else False


def is_head(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Does the first row name the columns?

    It has a name for every column that the rows below fill, or all but the first; none is a number, but for
    years; and none is as long as a sentence.
    """
    if not below or sum(bool(text.strip()) for text in first) < 2:
        return False
    width = max((at + 1 for row in below for at, text in enumerate(row) if text.strip()), default=0)
    names = [one_line(text) for text in first]
    if len({name for name in names if name}) < 2:  # a caption over the whole width
        return False
    missing = [at for at, name in enumerate(names[1:width], 1) if not name]
    if missing or len(names) < width:
        return False
    if any(is_number(name) and not _YEAR.fullmatch(name) for name in names):
        return False
    return not any(len(name) > _MAX_NAME_CHARS or _SENTENCE.search(name) for name in names)


def joined_head(rows: Sequence[Sequence[str]]) -> list[str]:
    """Several head rows as one: of each column, the names above each other, each once."""
    names: list[list[str]] = [[] for _ in range(max(map(len, rows), default=0))]
    for row in rows:
        for at, text in enumerate(row):
            name = one_line(text)
            if name and name not in names[at]:
                names[at].append(name)
    return [" ".join(column) for column in names]
