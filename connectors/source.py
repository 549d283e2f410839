"""Markup kept exactly as it is written: its lines, and the blocks, headings and tables found in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from epicrag.connectors.base import Parsed, pace
from epicrag.connectors.headings import Headings
from epicrag.connectors.lines import Line, line_anchors, lines_of
from epicrag.types import Block, BlockKind, MetaValue, Table

_MAX_TITLE_CHARS = 200
_MAX_HEAD_CHARS = 2_000


class Mark(NamedTuple):
    """A heading in the source."""

    start: int
    level: int
    heading: str


class Source:
    """What the readers of markup write into while they walk over the lines, from top to bottom.

    A paragraph grows line by line (`prose`) until something else is added or `close` is called.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines: Sequence[Line] = list(lines_of(text))
        self.rows: Sequence[str] = [text[line.start : line.end] for line in self.lines]
        """The lines' text, by index from 0."""
        self.blocks: list[Block] = []
        self.marks: list[Mark] = []
        self.tables: list[Table] = []
        self._headings = Headings()
        self._in_force: list[tuple[int, str | None]] = []
        self._first: int | None = None  # index of the first line of the paragraph being read
        self._last = -1

    def walk(self, step: Callable[[int], int], at: int = 0) -> None:
        """Read all lines from index `at` on: `step` reads the line at an index, and perhaps some below it,
        and returns the index of the next one. Then the open paragraph ends."""
        while at < len(self.rows):
            at = step(at)
        self.close()

    @property
    def open(self) -> int | None:
        """Index of the first line of the paragraph being read."""
        return self._first

    @property
    def is_one_line(self) -> bool:
        """Is the paragraph being read one line long?"""
        return self._first is not None and self._first == self._last

    def add(self, first: int, last: int, kind: BlockKind) -> None:
        """Add the lines of these indices, both included, as a block; the open paragraph ends."""
        pace()
        self.close()
        while first < last and not self.rows[last].strip():
            last -= 1
        self.blocks.append(Block(self.lines[first].start, self.lines[last].end, kind))

    def close(self) -> None:
        """End the paragraph being read, if there is one."""
        first, self._first = self._first, None
        if first is not None:
            self.add(first, self._last, "paragraph")

    def drop(self) -> int | None:
        """Forget the open paragraph, and return where it began: its lines become something else."""
        first, self._first = self._first, None
        return first

    def prose(self, at: int, *, item: bool = False) -> None:
        """Read a line of a paragraph. An item of a list begins a new one: it is a place to cut."""
        pace()
        if item:
            self.close()
        if self._first is None:
            self._first = at
        self._last = at

    def heading(self, first: int, last: int, level: int, words: str) -> None:
        """Add a heading, in force from its own line on."""
        self.add(first, last, "heading")
        words = " ".join(words.split())
        self.marks.append(Mark(self.lines[first].start, level, words))
        self._in_force.append((self.lines[first].start, self._headings.enter(level, words)))

    def under(self, at: int, name: str | None) -> None:
        """From line `at` on the text stands below the open headings and `name`; None: below them alone."""
        path = " > ".join(part for part in (self._headings.path, name) if part) or None
        self._in_force.append((self.lines[at].start, path))

    def table(self, rows: Sequence[tuple[int, int]], head: str | None) -> None:
        """Add a table of rows, each from one line to another; `head` says what its columns are."""
        for first, last in rows:
            self.add(first, last, "row")
        if rows and head and len(head) <= _MAX_HEAD_CHARS:
            start, end = self.lines[rows[0][0]].start, self.lines[rows[-1][1]].end
            self.tables.append(Table(start, end, head))

    def between(self, first: int, last: int) -> str:
        """The text of the lines of these indices, both included."""
        return "\n".join(self.rows[first : last + 1])

    def title(self) -> str | None:
        """The first heading of level 1."""
        return next((mark.heading for mark in self.marks if mark.level == 1 and mark.heading), None)

    def parsed(
        self,
        media: str,
        encoding: str | None,
        title: str | None,
        meta: Mapping[str, MetaValue] | None = None,
    ) -> Parsed:
        """Return what was found; the open paragraph ends."""
        self.close()
        last = {start: path for start, path in self._in_force}  # the last word for a line counts
        return Parsed(
            text=self.text,
            media=media,
            title=title if title and len(title) <= _MAX_TITLE_CHARS else None,
            encoding=encoding,
            anchors=line_anchors(self.text, sorted(last.items())),
            blocks=tuple(self.blocks),
            tables=tuple(self.tables),
            meta=dict(meta or {}),
        )


def rows_between(edges: Sequence[int]) -> list[tuple[int, int]]:
    """Return the rows between lines that part them: `edges` are the first line of each row, and the
    line below the last."""
    return [(first, after - 1) for first, after in pairwise(edges) if after > first]
