"""AsciiDoc: the source text exactly, cut at headings, delimited blocks, items and table rows."""

from __future__ import annotations

import re

from epicrag.connectors.base import Parsed
from epicrag.connectors.meta import meta_of
from epicrag.connectors.source import Source

_HEADING = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*)$")
_UNDERLINE = re.compile(r"(={3,}|-{3,}|~{3,}|\^{3,}|\+{3,})[ \t]*$")
_FENCE = re.compile(r"(-{4,}|\.{4,}|\+{4,}|/{4,}|`{3,}(?=\w*[ \t]*$))")
_FRAME = re.compile(r"(?:={4,}|\*{4,}|_{4,}|--)[ \t]*$")
_TABLE = re.compile(r"[|,:!]={3,}[ \t]*$")
_RULE = re.compile(r"(?:'{3,}|-{3}|- - -|\*{3}|\* \* \*|<{3})[ \t]*$")
_ITEM = re.compile(r"[ \t]*(?:\*{1,5}|-|\.{1,5}|\d{1,4}\.|<\d+>)[ \t]+\S|[^\s|].*\S::(?:\s|$)")
_ATTRIBUTE = re.compile(r":([\w-]+):(?:[ \t]+(.*))?$")
_ABOVE = re.compile(r"\[.*\][ \t]*$|\.[^\s.].*$")  # attributes and the title of the block below
_REVISION = re.compile(r"v?(\d[\w.]*)?,?[ \t]*(\d{4}-\d\d?-\d\d?|[A-Za-z]+ \d+,? \d{4})")
_AUTHOR = re.compile(r"([^\W\d][\w.' -]+?)(?:[ \t]+<[^>]*>)?(?:;.*)?$")
_MAX_AUTHOR_CHARS = 300
_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4, "+": 5}
_SAID = frozenset(
    ["author", "authors", "date", "revdate", "revnumber", "keywords", "description", "lang", "tags"]
)


def parse_asciidoc(text: str, encoding: str | None = None) -> Parsed:
    """Read AsciiDoc. The document's title is its `=` heading; attributes of its head are `meta`."""
    scan = _Scan(text)
    scan.run()
    return scan.source.parsed(
        "text/asciidoc", encoding, scan.source.title(), meta_of(scan.attributes)
    )


class _Scan:
    """One pass over the lines. `source` and `attributes` are complete after `run`."""

    def __init__(self, text: str) -> None:
        self.source = Source(text)
        self.attributes: dict[str, object] = {}
        self._rows = self.source.rows

    def run(self) -> None:
        self.source.walk(self._step)

    def _step(self, at: int) -> int:
        """Read the line at index `at`; return the index of the next line to read."""
        row, source = self._rows[at], self.source
        if not row.strip():
            source.close()
        elif heading := _HEADING.match(row):
            source.heading(at, at, len(heading[1]), _bare(heading[1], heading[2]))
            return self._head(at + 1) if len(source.marks) == 1 and len(heading[1]) == 1 else at + 1
        elif self._is_underline(at):
            first = source.drop()
            assert first is not None
            source.heading(first, at, _LEVELS[row[0]], self._rows[first])
            return self._head(at + 1) if row[0] == "=" and len(source.marks) == 1 else at + 1
        elif fence := _FENCE.match(row):
            return self._code(at, fence[1])
        elif _TABLE.match(row):
            return self._table(at)
        elif _RULE.match(row):
            source.add(at, at, "break")
        else:
            self._prose(at, row)
        return at + 1

    def _prose(self, at: int, row: str) -> None:
        source = self.source
        if attribute := _ATTRIBUTE.match(row):
            self._attribute(attribute)
        # A frame, or what is said above a block, begins something; the line below goes on with it.
        above = source.open is not None and not _is_above(self._rows[at - 1])
        begins = _ITEM.match(row) or _FRAME.match(row) or _ABOVE.match(row)
        source.prose(at, item=bool(above and begins))

    def _attribute(self, found: re.Match[str]) -> None:
        if found[1] in _SAID and found[2]:
            self.attributes.setdefault(found[1], found[2])

    def _head(self, at: int) -> int:
        """Read author, revision and attributes right below the document's title."""
        rows = self._rows
        first = at
        while at < len(rows) and rows[at].strip():
            row = rows[at]
            if attribute := _ATTRIBUTE.match(row):
                self._attribute(attribute)
            elif (
                at == first
                and len(row) <= _MAX_AUTHOR_CHARS
                and (author := _AUTHOR.match(row))
                and "::" not in row
            ):
                self.attributes.setdefault("author", author[1].replace("_", " "))
            elif revision := _REVISION.match(row):
                self.attributes.setdefault("revdate", revision[2])
            elif not row.startswith("//"):
                return first  # no head: a text that begins without a blank line
            at += 1
        if at > first:
            self.source.add(first, at - 1, "paragraph")
        return at

    def _is_underline(self, at: int) -> bool:
        """Is this the line below a one-line title: of its length, give or take two?"""
        row, source = self._rows[at].rstrip(), self.source
        if not source.is_one_line or source.open != at - 1 or not _UNDERLINE.match(row):
            return False
        above = self._rows[at - 1].rstrip()
        return abs(len(above) - len(row)) <= 2 and not _is_above(above) and above[0].isalnum()

    def _code(self, at: int, fence: str) -> int:
        """Read a block between two equal lines, with the attributes right above it."""
        first = at
        if self.source.open is not None and _is_above(self._rows[self.source.open]):
            first = self.source.drop() or 0
        last = at + 1
        while last < len(self._rows) and self._rows[last].rstrip() != fence:
            last += 1
        last = min(last, len(self._rows) - 1)
        self.source.add(first, last, "code")
        return last + 1

    def _table(self, at: int) -> int:
        """Read a table: as many cells as there are columns are a row, however they stand in lines."""
        rows, fence = self._rows, self._rows[at].rstrip()
        above = "\n".join(rows[self.source.open : at]) if self.source.open is not None else ""
        end = at + 1
        while end < len(rows) and rows[end].rstrip() != fence:
            end += 1
        mark = fence[0] if fence[0] != "=" else "|"
        spans = self._spans(at + 1, min(end, len(rows)), mark, above)
        last = min(end, len(rows) - 1)
        if not spans:
            self.source.add(at, last, "paragraph")
            return last + 1
        has_head = len(spans) > 1 and (
            "header" in above
            or (spans[0][0] == at + 1 and not rows[spans[0][1] + 1].strip())
            or "cols" not in above
        )
        head = self.source.between(*spans[0]) if has_head else None
        spans = [(at, spans[0][1]), *spans[1:]]
        spans[-1] = (spans[-1][0], last)
        self.source.table(spans, head)
        return last + 1

    def _spans(self, first: int, end: int, mark: str, above: str) -> list[tuple[int, int]]:
        """Return the rows of a table as spans of lines."""
        filled = [at for at in range(first, end) if self._rows[at].strip()]
        if not filled or mark not in "|!":
            return [(at, at) for at in filled]
        n_columns = _n_columns(above) or self._rows[filled[0]].count(mark)
        spans: list[tuple[int, int]] = []
        start, n_cells = filled[0], 0
        for at in filled:
            here = self._rows[at].count(mark)
            # A row is closed only by the next line with cells: the last cell may go on below.
            if n_cells >= max(n_columns, 1) and here:
                spans.append((start, at - 1))
                start, n_cells = at, 0
            n_cells += here
        spans.append((start, filled[-1]))
        return [(one, self._filled(last)) for one, last in spans]

    def _filled(self, last: int) -> int:
        while not self._rows[last].strip():
            last -= 1
        return last


def _bare(mark: str, words: str) -> str:
    """The words of a heading, without the mark that may stand behind them, too."""
    words = words.rstrip(" \t")
    bare = words.removesuffix(mark)
    return bare.rstrip(" \t") if bare.endswith((" ", "\t")) else words


def _is_above(row: str) -> bool:
    return _ABOVE.match(row) is not None


def _n_columns(above: str) -> int:
    """Columns that the attributes above a table speak of; 0 when they do not."""
    found = re.search(r"cols\s*=\s*(?:\"([^\"]*)\"|([\w*]+))", above)
    if not found:
        return 0
    total = 0
    for column in (found[1] or found[2] or "").split(","):
        times = re.match(r"\s*(\d{1,3})\*", column)
        total += int(times[1]) if times else 1
    return total
