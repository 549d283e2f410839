"""Rows of a table as text: for sheets, CSV and tables in documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from epicrag.connectors.draft import Draft

_MAX_COLUMNS = 8
_MAX_HEAD_CHARS = 240
_MAX_ROW_CHARS = 400
"""Beyond these nobody can tell which of many bars a value stands behind: each value then has its name."""


class RowWriter:
    """Writes a table row by row, one line each.

    A table of few columns is written `a | b | c`, its head first; a chunk that begins further down is
    shown the head again. In a wide table, and for a row that is long, each value has its column's name:
    `column: value; column: value`, and empty cells are left out. Use as a context manager, or call `end`.

    Args:
        head: the names of the columns; None where there are none. Written at once, at `cell` or `line`.
        above: lines that stand above the head and say what the whole table is of: units, a period.
        spanning: equal names side by side are one name over several columns, which is written once.
    """

    def __init__(
        self,
        draft: Draft,
        head: Sequence[str] | None,
        *,
        cell: str | None = None,
        last: str | None = None,
        line: int | None = None,
        above: Sequence[str] = (),
        spanning: bool = False,
    ) -> None:
        self._draft = draft
        self._spanning = spanning
        self._head = [one_line(name) for name in head or ()]
        self._source_head = head or ()
        self._above = [one_line(text) for text in above]
        self._start = draft.length
        self._gap = "\n\n"
        shown = " | ".join(self._head)
        self._wide = len(self._head) > _MAX_COLUMNS or len(shown) > _MAX_HEAD_CHARS
        for text in self._above:
            self._write([text], cell, last, line)
        if any(self._head):
            self._write(self._shown_head(_texts(self._source_head, line)), cell, last, line)

    def row(
        self,
        cells: Sequence[str],
        *,
        cell: str | None = None,
        last: str | None = None,
        line: int | None = None,
    ) -> None:
        """Write a row. `cell` is its first cell's name, `last` its last one's; a row of nothing leaves
        no trace. With a `line` the line ends within the cells are those of the source: what stands behind
        each is on the next line."""
        texts = _texts(cells, line)
        long = sum(map(len, texts)) > _MAX_ROW_CHARS and len(texts) > 2
        if any(self._head) and (self._wide or long):
            texts = [self._labelled(texts)]
        self._write(texts, cell, last, line)

    def end(self) -> None:
        """Say that the table ends here."""
        names = (
            []
            if self._wide or not any(self._head)
            else [" | ".join(self._shown_head(self._head)).strip()]
        )
        self._draft.table(self._start, "\n".join([*self._above, *names]))
        self._draft.cell = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.end()

    def _shown_head(self, texts: list[str]) -> list[str]:
        """The head as it is written: a name over several columns stands once."""
        if not self._spanning:
            return texts
        before = ["", *self._head]
        return [
            "" if name == left else text
            for left, name, text in zip(before, self._head, texts, strict=False)
        ]

    def _labelled(self, texts: list[str]) -> str:
        n_names = len(self._head)
        pairs = [
            (self._head[at] if at < n_names else "", text) for at, text in enumerate(texts) if text
        ]
        return "; ".join(f"{name}: {text}" if name else text for name, text in pairs)

    def _write(
        self, texts: list[str], cell: str | None, last: str | None, line: int | None
    ) -> None:
        """Write a line; wherever it is cut, its cells are those from `cell` to `last`."""
        n_filled = next((at for at in range(len(texts), 0, -1) if texts[at - 1]), 0)
        if not n_filled:
            return
        draft = self._draft
        draft.cell = cell if last is None or last == cell else f"{cell}:{last}"
        draft.open("row", self._gap)
        row = " | ".join(texts[:n_filled])
        if line is None:
            draft.write(row)
        else:
            write_lines(draft, row, line)
        draft.close()
        self._gap = "\n"


def write_lines(draft: Draft, text: str, line: int) -> None:
    """Write a text into the open block as one line, that knows which source line each piece is of.

    Args:
        text: as in the source, line ends included.
        line: the source line it begins on.
    """
    for at, piece in enumerate(text.split("\n")):
        if piece:
            draft.line = line + at
            draft.write(piece if draft.last_character in (" ", "") else f" {piece}")


def _texts(cells: Sequence[str], line: int | None) -> list[str]:
    """The cells on one line each; where they have source lines, with the line ends of these. Those of an
    empty cell stand before the next text, for each counts."""
    if line is None or not any("\n" in cell for cell in cells):
        return [one_line(cell) for cell in cells]
    texts, held = [], ""
    for cell in cells:
        text = "\n".join(map(one_line, cell.split("\n")))
        is_blank = not text.strip()
        texts.append("" if is_blank else held + text)
        held = held + text if is_blank else ""
    return texts


def one_line(text: str) -> str:
    """A cell's text without line ends: a row is one line."""
    return " ".join(text.split())
