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
    ) -> None:
        self._draft = draft
        self._head = [one_line(name) for name in head or ()]
        self._above = [one_line(text) for text in above]
        self._start = draft.length
        self._gap = "\n\n"
        shown = " | ".join(self._head)
        self._wide = len(self._head) > _MAX_COLUMNS or len(shown) > _MAX_HEAD_CHARS
        for text in self._above:
            self._write([text], cell, last, line)
        if any(self._head):
            self._write(self._shown_head(), cell, last, line)

    def row(
        self,
        cells: Sequence[str],
        *,
        cell: str | None = None,
        last: str | None = None,
        line: int | None = None,
    ) -> None:
        """Write a row. `cell` is its first cell's name, `last` its last one's; a row of nothing leaves
        no trace."""
        texts = [one_line(text) for text in cells]
        long = sum(map(len, texts)) > _MAX_ROW_CHARS and len(texts) > 2
        if any(self._head) and (self._wide or long):
            texts = [self._labelled(texts)]
        self._write(texts, cell, last, line)

    def end(self) -> None:
        """Say that the table ends here."""
        names = (
            [] if self._wide or not any(self._head) else [" | ".join(self._shown_head()).strip()]
        )
        self._draft.table(self._start, "\n".join([*self._above, *names]))
        self._draft.cell = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.end()

    def _shown_head(self) -> list[str]:
        """The head as it is written: a name over several columns stands once."""
        before = ["", *self._head]
        return [
            "" if name == left else name for left, name in zip(before, self._head, strict=False)
        ]

    def _labelled(self, texts: list[str]) -> str:
        names = [*self._head, *[""] * (len(texts) - len(self._head))]
        pairs = [(name, text) for name, text in zip(names, texts, strict=False) if text]
        return "; ".join(f"{name}: {text}" if name else text for name, text in pairs)

    def _write(
        self, texts: list[str], cell: str | None, last: str | None, line: int | None
    ) -> None:
        """Write a line; its last text stands at the cell `last`, so that a passage's cells reach there."""
        while texts and not texts[-1]:
            texts = texts[:-1]
        if not texts:
            return
        draft = self._draft
        draft.cell = cell
        if line is not None:
            draft.line = line
        draft.open("row", self._gap)
        row = " | ".join(texts)
        at = len(row) - 1 if last is not None and last != cell and len(row) > 1 else len(row)
        draft.write(row[:at])
        if at < len(row):
            draft.cell = last
            draft.write(row[at:])
        draft.close()
        self._gap = "\n"


def one_line(text: str) -> str:
    """A cell's text without line ends: a row is one line."""
    return " ".join(text.split())
