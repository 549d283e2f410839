"""Markdown: the source text exactly, cut at headings, fenced code, tables and paragraphs."""

from __future__ import annotations

import re
from typing import NamedTuple

from epicrag.connectors.base import Parsed
from epicrag.connectors.headings import Headings
from epicrag.connectors.lines import Line, line_anchors, lines_of
from epicrag.types import Block, BlockKind

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r"[ \t]*(?:>[ \t]?)*(`{3,}|~{3,})(?P<info>.*)$")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_TABLE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_FRONT_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(.+?)\1[ \t]*$", re.MULTILINE)
_MAX_TITLE_CHARS = 200


class _Mark(NamedTuple):
    """A heading in the source."""

    start: int
    level: int
    heading: str


def parse_markdown(text: str, encoding: str | None = None) -> Parsed:
    """Read Markdown. The title is the first heading of level 1, else the front matter's."""
    scan = _Scan(text)
    scan.run()
    open_headings = Headings()
    headings = [(mark.start, open_headings.enter(mark.level, mark.heading)) for mark in scan.marks]
    titles = (mark.heading for mark in scan.marks if mark.level == 1 and mark.heading)
    title = next(titles, None) or scan.front_title
    return Parsed(
        text=text,
        media="text/markdown",
        title=title if title and len(title) <= _MAX_TITLE_CHARS else None,
        encoding=encoding,
        anchors=line_anchors(text, headings),
        blocks=tuple(scan.blocks),
    )


class _Scan:
    """One pass over the lines. `blocks` and `marks` are complete after `run`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.blocks: list[Block] = []
        self.marks: list[_Mark] = []
        self.front_title: str | None = None
        self._lines = list(lines_of(text))
        self._open: Line | None = None  # first line of the paragraph being read
        self._last: Line | None = None

    def run(self) -> None:
        at = self._front_matter()
        while at < len(self._lines):
            at = self._step(at)
        self._close()

    def _step(self, at: int) -> int:
        """Read the line at index `at`; return the index of the next line to read."""
        line = self._lines[at]
        source = self._source(line)
        if not source.strip():
            self._close()
        elif (fence := _FENCE.match(source)) and "`" not in fence["info"]:
            return self._code(at, fence[1])
        elif atx := _ATX.match(source):
            self._heading(line, line, len(atx[1]), atx[2] or "")
        elif self._is_underline(line, source):
            self._setext(line, source)
        elif _RULE.match(source):
            self._close()
            self._add(line, line, "break")
        elif self._is_table(at):
            return self._table(at)
        else:
            self._prose(line, source)
        return at + 1

    def _source(self, line: Line) -> str:
        return self.text[line.start : line.end]

    def _add(self, first: Line, last: Line, kind: BlockKind) -> None:
        self.blocks.append(Block(first.start, last.end, kind))

    def _close(self) -> None:
        """End the paragraph being read, if there is one."""
        if self._open is not None and self._last is not None:
            self._add(self._open, self._last, "paragraph")
        self._open = self._last = None

    def _prose(self, line: Line, source: str) -> None:
        # A list item is a place to cut, as a paragraph is.
        if self._open is not None and _ITEM.match(source):
            self._close()
        if self._open is None:
            self._open = line
        self._last = line

    def _heading(self, first: Line, last: Line, level: int, heading: str) -> None:
        self._close()
        self._add(first, last, "heading")
        self.marks.append(_Mark(first.start, level, heading))

    def _is_underline(self, line: Line, source: str) -> bool:
        """Is this the `===` or `---` below a paragraph of one line (a setext heading)?"""
        return (
            self._open is not None
            and self._open is self._last
            and not _ITEM.match(self._source(self._open))
            and _SETEXT.match(source) is not None
            and "|" not in self._source(self._open)
        )

    def _setext(self, line: Line, source: str) -> None:
        above = self._open
        assert above is not None
        self._open = self._last = None
        level = 1 if source.strip().startswith("=") else 2
        self._heading(above, line, level, self._source(above).strip())

    def _code(self, at: int, fence: str) -> int:
        """Read fenced code, up to its closing fence or the end of the text."""
        self._close()
        end = re.compile(rf"[ \t]*(?:>[ \t]?)*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
        last = at + 1
        while last < len(self._lines) and not end.match(self._source(self._lines[last])):
            last += 1
        last = min(last, len(self._lines) - 1)
        self._add(self._lines[at], self._lines[last], "code")
        return last + 1

    def _is_table(self, at: int) -> bool:
        """Does a table start here: a line with cells above a line of dashes?"""
        if at + 1 >= len(self._lines) or "|" not in self._source(self._lines[at]):
            return False
        below = self._source(self._lines[at + 1])
        return "-" in below and "|" in below and _TABLE.match(below) is not None

    def _table(self, at: int) -> int:
        """Read a table row by row; the header and its line of dashes are one row."""
        self._close()
        self._add(self._lines[at], self._lines[at + 1], "row")
        at += 2
        while at < len(self._lines) and "|" in self._source(self._lines[at]):
            self._add(self._lines[at], self._lines[at], "row")
            at += 1
        return at

    def _front_matter(self) -> int:
        """Read the YAML between `---` lines at the top; return the index of the line below it."""
        if not self._lines or self._source(self._lines[0]).rstrip() != "---":
            return 0
        for at, line in enumerate(self._lines[1:200], 1):
            if self._source(line).rstrip() in ("---", "..."):
                if at == 1:
                    return 0
                self._add(self._lines[0], line, "code")
                title = _FRONT_TITLE.search(self.text[: line.start])
                self.front_title = title[2].strip() if title else None
                return at + 1
        return 0
