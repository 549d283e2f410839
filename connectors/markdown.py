"""Markdown: the source text exactly, cut at headings, fenced code, tables and paragraphs."""

from __future__ import annotations

import re

from epicrag.connectors.base import Parsed
from epicrag.connectors.frontmatter import front_matter, front_matter_end
from epicrag.connectors.source import Source
from epicrag.types import MetaValue

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?$")
_CLOSING = re.compile(r"(?:^|(?<=[ \t]))#+$")
_FENCE = re.compile(r"[ \t]*(?:>[ \t]?)*(`{3,}|~{3,})(?P<info>.*)$")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_TABLE = re.compile(r"[ \t]*+\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?[ \t]*+$")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])[ \t]+\S")


def parse_markdown(text: str, encoding: str | None = None) -> Parsed:
    """Read Markdown. The title is the first heading of level 1, else the front matter's."""
    scan = _Scan(text)
    scan.run()
    front_title = scan.meta.get("title")
    title = scan.source.title() or (front_title if isinstance(front_title, str) else None)
    return scan.source.parsed("text/markdown", encoding, title, scan.meta)


class _Scan:
    """One pass over the lines. `source` and `meta` are complete after `run`."""

    def __init__(self, text: str) -> None:
        self.source = Source(text)
        self.meta: dict[str, MetaValue] = {}
        self._rows = self.source.rows

    def run(self) -> None:
        self.source.walk(self._step, self._front_matter())

    def _step(self, at: int) -> int:
        """Read the line at index `at`; return the index of the next line to read."""
        row, source = self._rows[at], self.source
        if not row.strip():
            source.close()
        elif (fence := _FENCE.match(row)) and "`" not in fence["info"]:
            return self._code(at, fence[1])
        elif atx := _ATX.match(row):
            source.heading(at, at, len(atx[1]), _CLOSING.sub("", (atx[2] or "").rstrip(" \t")))
        elif self._is_underline(row):
            first = source.drop()
            assert first is not None
            level = 1 if row.strip().startswith("=") else 2
            source.heading(first, at, level, self._rows[first].strip())
        elif _RULE.match(row):
            source.add(at, at, "break")
        elif self._is_table(at):
            return self._table(at)
        else:
            source.prose(at, item=_ITEM.match(row) is not None)
        return at + 1

    def _is_underline(self, row: str) -> bool:
        """Is this the `===` or `---` below a paragraph of one line (a setext heading)?"""
        if not self.source.is_one_line or _SETEXT.match(row) is None:
            return False
        above = self._rows[self.source.open or 0]
        return not _ITEM.match(above) and "|" not in above

    def _code(self, at: int, fence: str) -> int:
        """Read fenced code, up to its closing fence or the end of the text."""
        end = re.compile(rf"[ \t]*(?:>[ \t]?)*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
        last = at + 1
        while last < len(self._rows) and not end.match(self._rows[last]):
            last += 1
        last = min(last, len(self._rows) - 1)
        self.source.add(at, last, "code")
        return last + 1

    def _is_table(self, at: int) -> bool:
        """Does a table start here: a line with cells above a line of dashes?"""
        if at + 1 >= len(self._rows) or "|" not in self._rows[at]:
            return False
        below = self._rows[at + 1]
        return "-" in below and "|" in below and _TABLE.match(below) is not None

    def _table(self, at: int) -> int:
        """Read a table row by row; the header and its line of dashes are one row."""
        rows = [(at, at + 1)]
        below = at + 2
        while below < len(self._rows) and "|" in self._rows[below]:
            rows.append((below, below))
            below += 1
        self.source.table(rows, self.source.between(at, at + 1))
        return below

    def _front_matter(self) -> int:
        """Read what stands between fences at the top; return the index of the line below it."""
        end = front_matter_end(self._rows)
        if end:
            self.source.add(0, end - 1, "code")
            self.meta = front_matter(self._rows[:end])
        return end
