"""A document being written: for formats whose text is not the source as it stands."""

from __future__ import annotations

from collections.abc import Mapping

from epicrag.connectors.base import Parsed, pace
from epicrag.connectors.headings import Headings
from epicrag.types import Anchor, Block, BlockKind, MetaValue, Table


class Draft:
    """Collects text, and notes page, line and heading as they change.

    `page`, `line`, `part` and `cell` are set by the caller, and hold from the next text on.
    Blocks are written one after the other: `open`, `write` any number of times, `close`. What a block
    holds is stripped, and a block of white space alone leaves no trace.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.headings = Headings()
        self.page: int | None = None
        self.line: int | None = None
        self.part: str | None = None
        self.cell: str | None = None
        self._tables: list[Table] = []
        self._heading: str | None = None
        self._parts: list[str] = []
        self._anchors: list[Anchor] = []
        self._length = 0
        self._kind: BlockKind = "paragraph"
        self._start = -1  # none is open
        self._gap = ""

    def open(self, kind: BlockKind, gap: str = "\n\n") -> None:
        """Begin a block; `gap` is the white space that stands between it and the block before."""
        pace()
        self._kind, self._gap, self._start = kind, gap if self._length else "", -1

    def write(self, text: str) -> None:
        """Add to the open block. Its first text decides where it starts."""
        if self._start < 0:
            text = text.lstrip(" \n")
        if text:
            self.write_exact(text)

    def write_exact(self, text: str) -> None:
        """Add to the open block, white space in front included."""
        pace()
        if self._start < 0:
            self._append(self._gap)
            self._start = self._length
        self._anchor()
        self._append(text)

    def trim(self) -> None:
        """Take back the spaces at the end of the open block."""
        if self._start >= 0 and self._parts:
            bare = self._parts[-1].rstrip(" ")
            self._length -= len(self._parts[-1]) - len(bare)
            self._parts[-1] = bare

    def close(self, level: int | None = None) -> None:
        """End the block. With a level it is a heading, in force from where it starts."""
        if self._start < 0:
            return
        self._rstrip()
        if level is not None:
            self._head(level)
        self.blocks.append(Block(self._start, self._length, self._kind))
        self._start = -1

    def leave_headings(self) -> None:
        """No heading is in force from here on: another slide, sheet or message begins."""
        self.headings = Headings()
        self._heading = None

    def enter(self, level: int, heading: str) -> None:
        """Put a heading in force that is not written, "" for none: what follows stands under it."""
        self._heading = self.headings.enter(level, heading)

    @property
    def length(self) -> int:
        """Characters written so far."""
        return self._length

    @property
    def is_open(self) -> bool:
        """Has the open block text in it?"""
        return self._start >= 0

    @property
    def last_character(self) -> str:
        """The last character of the open block, "" when there is none."""
        return self._parts[-1][-1:] if self._start >= 0 and self._parts else ""

    def text(self) -> str:
        """All text written so far."""
        return "".join(self._parts)

    def table(self, start: int, head: str) -> None:
        """Say that what was written from character `start` on is a table under this head."""
        first = next((block.start for block in self.blocks if block.start >= start), None)
        if head and first is not None:
            self._tables.append(Table(first, self._length, head))

    def tables(self) -> tuple[Table, ...]:
        """The tables, in order."""
        return tuple(self._tables)

    def anchors(self) -> tuple[Anchor, ...]:
        """The places of the text; the first stands at 0."""
        return tuple(self._anchors)

    def parsed(
        self,
        media: str,
        *,
        title: str | None = None,
        encoding: str | None = None,
        meta: Mapping[str, MetaValue] | None = None,
    ) -> Parsed:
        """Return what was written, as what a reader answers."""
        return Parsed(
            text=self.text(),
            media=media,
            title=title,
            encoding=encoding,
            anchors=self.anchors(),
            blocks=tuple(self.blocks),
            tables=self.tables(),
            meta=meta or {},
        )

    def _append(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._length += len(text)

    def _rstrip(self) -> None:
        while self._parts and self._length > self._start:
            bare = self._parts[-1].rstrip(" \n")
            self._length -= len(self._parts[-1]) - len(bare)
            if bare:
                self._parts[-1] = bare
                break
            self._parts.pop()
        while self._anchors and self._anchors[-1].start >= self._length > 0:
            self._anchors.pop()

    def _anchor(self) -> None:
        last = self._anchors[-1] if self._anchors else None
        if last and (last.page, last.line, last.heading, last.part, last.cell) == (
            *(self.page, self.line, self._heading, self.part, self.cell),
        ):
            return
        anchor = Anchor(self._length, self.page, self.line, self._heading, self.part, self.cell)
        if last and last.start == anchor.start:
            self._anchors.pop()
        self._anchors.append(anchor)

    def _head(self, level: int) -> None:
        """Put the heading just written in force, for its own characters too."""
        written = self.text_from(self._start)
        self._heading = self.headings.enter(level, written)
        line = self.line
        while self._anchors and self._anchors[-1].start >= self._start:
            line = self._anchors.pop().line
        place = Anchor(self._start, self.page, line, self._heading, self.part, self.cell)
        self._anchors.append(place)

    def text_from(self, start: int) -> str:
        """Return the text from character `start` on; cheap near the end."""
        tail: list[str] = []
        length = self._length
        for part in reversed(self._parts):
            tail.append(part)
            length -= len(part)
            if length <= start:
                break
        return "".join(reversed(tail))[start - length :]
