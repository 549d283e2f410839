"""Org mode: the source text exactly, cut at headings, blocks, items and table rows."""

from __future__ import annotations

import re
from bisect import bisect_right

from epicrag.connectors.base import Parsed
from epicrag.connectors.meta import meta_of
from epicrag.connectors.source import Source

_HEADING = re.compile(r"(\*+)[ \t]+(\S.*)$")
_STATE = re.compile(r"(?:TODO|DONE|NEXT|WAITING|STARTED|CANCELLED|CANCELED|HOLD)\s+(?=\S)")
_PRIORITY = re.compile(r"\[#\w\]\s*")
_TAGS = re.compile(r"(?<!\s)\s++:[\w@#%:]+:$")
_KEYWORD = re.compile(r"#\+([\w-]+):[ \t]*(.*)$")
_BEGIN = re.compile(r"[ \t]*#\+begin_(\w+)", re.IGNORECASE)
_END = re.compile(r"[ \t]*(?:#\+end_(\w+)|:end:)[ \t]*$", re.IGNORECASE)
_PLAIN = frozenset(["quote", "verse", "center", "abstract", "note", "warning", "tip"])
_DRAWER = re.compile(r"[ \t]*:([\w-]+):[ \t]*$")
_PROPERTY = re.compile(r"[ \t]*:([\w+-]+):[ \t]+(.+)$")
_ITEM = re.compile(r"[ \t]*(?:[-+]|\d{1,4}[.)])[ \t]+\S|[ \t]+\*[ \t]+\S")
_RULE = re.compile(r"-{5,}[ \t]*$")
_FIXED = re.compile(r"[ \t]*:(?: |$)")
_SAID = frozenset(
    ["title", "author", "date", "language", "keywords", "filetags", "description", "subtitle"]
)


def parse_org(text: str, encoding: str | None = None) -> Parsed:
    """Read Org mode. The title is `#+TITLE:`, else the only heading of level 1 at the top."""
    scan = _Scan(text)
    scan.run()
    meta = meta_of(scan.said)
    named = meta.get("title")
    title = named if isinstance(named, str) else scan.only_title()
    return scan.source.parsed("text/org", encoding, title, meta)


class _Scan:
    """One pass over the lines. `source` and `said` are complete after `run`."""

    def __init__(self, text: str) -> None:
        self.source = Source(text)
        self.said: dict[str, object] = {}
        self._rows = self.source.rows
        self._tops = [at for at, row in enumerate(self._rows) if _HEADING.match(row)]
        self._ends: dict[str, list[int]] = {}
        for at, row in enumerate(self._rows):
            if end := _END.match(row):
                self._ends.setdefault((end[1] or "").lower(), []).append(at)

    def run(self) -> None:
        self.source.walk(self._step)

    def only_title(self) -> str | None:
        """The heading of level 1, where there is one only."""
        first = [mark.heading for mark in self.source.marks if mark.level == 1]
        return first[0] if len(first) == 1 else None

    def _step(self, at: int) -> int:
        """Read the line at index `at`; return the index of the next line to read."""
        row, source = self._rows[at], self.source
        if not row.strip():
            source.close()
        elif heading := _HEADING.match(row):
            source.heading(at, at, len(heading[1]), _bare(heading[2]))
        elif begin := _BEGIN.match(row):
            if end := self._end(at, begin[1].lower()):
                return self._block(at, end, begin[1].lower() in _PLAIN)
            source.prose(at)
        elif (drawer := _DRAWER.match(row)) and (end := self._end(at, "")):
            self._drawer(at, end, drawer[1])
            return end + 1
        elif row.lstrip().startswith("|"):
            return self._table(at)
        elif _FIXED.match(row):
            return self._fixed(at)
        elif _RULE.match(row):
            source.add(at, at, "break")
        else:
            if keyword := _KEYWORD.match(row):
                self._keyword(keyword[1].lower(), keyword[2].strip())
            source.prose(at, item=_ITEM.match(row) is not None)
        return at + 1

    def _keyword(self, name: str, value: str) -> None:
        if name == "property":
            name, _, value = value.partition(" ")
        elif name not in _SAID:
            return
        if name == "filetags":
            self.said[name] = [tag for tag in value.split(":") if tag.strip()]
        elif value:
            self.said.setdefault(name, value)

    def _end(self, at: int, name: str) -> int:
        """Return the index of the line that ends the block of this name (a drawer has none) that begins
        at `at`; 0 when none does before the next heading."""
        ends = self._ends.get(name, [])
        end, top = bisect_right(ends, at), bisect_right(self._tops, at)
        if end == len(ends) or (top < len(self._tops) and self._tops[top] < ends[end]):
            return 0
        return ends[end]

    def _block(self, at: int, end: int, plain: bool) -> int:
        """Read `#+BEGIN_… #+END_…`: code as one block; a quotation as the paragraphs that it is."""
        first = at
        if self.source.open is not None and self._rows[at - 1].startswith("#+"):
            first = self.source.drop() or 0  # its name and caption
        if plain:
            for index in range(first, end + 1):
                if self._rows[index].strip():
                    self.source.prose(index)
                else:
                    self.source.close()
        else:
            self.source.add(first, end, "code")
        return end + 1

    def _drawer(self, at: int, end: int, name: str) -> None:
        """Read a drawer; the properties above the first heading are the document's."""
        if name.lower() == "properties" and not self.source.marks:
            for row in self._rows[at + 1 : end]:
                if found := _PROPERTY.match(row):
                    self.said.setdefault(found[1], found[2])
        self.source.add(at, end, "code")

    def _table(self, at: int) -> int:
        """Read a table; what stands above its first `|---` line is its head."""
        rows = self._rows
        end = at
        while end < len(rows) and rows[end].lstrip().startswith("|"):
            end += 1
        rules = [index for index in range(at, end) if rows[index].lstrip().startswith("|-")]
        below = [rule for rule in rules if at < rule < end - 1 and rule - at <= 4]
        first = below[0] + 1 if below else at
        spans = [(index, index) for index in range(first, end)]
        head = self.source.between(at, below[0]) if below else None
        self.source.table([(at, below[0]), *spans] if below else spans, head)
        return end

    def _fixed(self, at: int) -> int:
        end = at
        while end < len(self._rows) and _FIXED.match(self._rows[end]):
            end += 1
        self.source.add(at, end - 1, "code")
        return end


def _bare(heading: str) -> str:
    """A heading without its state, priority and tags."""
    bare = _TAGS.sub("", _PRIORITY.sub("", _STATE.sub("", heading), count=1).strip()).strip()
    return bare or heading.strip()
