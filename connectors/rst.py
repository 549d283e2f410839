"""reStructuredText: the source text exactly, cut at headings, directives, literal blocks and table rows."""

from __future__ import annotations

import re
import unicodedata

from epicrag.connectors.base import Parsed
from epicrag.connectors.meta import meta_of
from epicrag.connectors.source import Source, rows_between
from epicrag.types import MetaValue

_LINE = re.compile(r"([!-/:-@\[-`{-~])\1+\s*$")
_DIRECTIVE = re.compile(r"(\s*)\.\. +(?:\|[^|]+\| +)?([\w.+:-]*?\w)::(?:\s+(.*))?$")
_ITEM = re.compile(r"\s*(?:[-*+•]|\(?(?:\d{1,4}|[A-Za-z]|#)[.)])\s+\S")
_FIELD = re.compile(r":([A-Za-z][\w -]{0,40}):\s+(.*)$")
_GRID = re.compile(r"\s*\+[-=+]*[-=]\+\s*$")
_GRID_HEAD = re.compile(r"\s*\+[=+]*=\+\s*$")
_SIMPLE = re.compile(r"\s*=+(?: +=+)+\s*$")
_OPTION = re.compile(r"\s+:[\w-]+:")
_CODE = frozenset(
    [
        "code",
        "code-block",
        "sourcecode",
        "literalinclude",
        "parsed-literal",
        "highlight",
        "math",
        "productionlist",
        "doctest",
        "testcode",
        "testoutput",
        "raw",
        "prompt",
        "ipython",
        "graphviz",
        "mermaid",
        "uml",
        "toctree",
    ]
)
_DEFINES = frozenset(
    [
        "data",
        "function",
        "class",
        "method",
        "classmethod",
        "staticmethod",
        "attribute",
        "property",
        "exception",
        "decorator",
        "decoratormethod",
        "option",
        "envvar",
        "confval",
        "setting",
        "describe",
        "object",
        "macro",
        "struct",
        "member",
        "var",
        "type",
        "enum",
        "enumerator",
        "directive",
        "role",
        "program",
        "autoclass",
        "autofunction",
        "automethod",
        "autodata",
        "autoexception",
        "rst:directive",
    ]
)
_MAX_NAME_CHARS = 120


def parse_rst(text: str, encoding: str | None = None) -> Parsed:
    """Read reStructuredText. What a directive defines is a heading over its description."""
    scan = _Scan(text)
    scan.run()
    title = scan.source.title() or None
    named = scan.meta.get("title")
    return scan.source.parsed(
        "text/x-rst", encoding, title or (named if isinstance(named, str) else None), scan.meta
    )


class _Scan:
    """One pass over the lines. `source` and `meta` are complete after `run`."""

    def __init__(self, text: str) -> None:
        self.source = Source(text)
        self.meta: dict[str, MetaValue] = {}
        self._rows = self.source.rows
        self._styles: list[
            tuple[str, bool]
        ] = []  # underline, and whether there is a line above, too
        self._defined: list[tuple[int, str]] = []  # indentation and name of each open definition
        self._literal_below: int | None = None  # a paragraph of this indentation ended with `::`
        self._fields: dict[str, object] = {}

    def run(self) -> None:
        self.source.walk(self._step)
        self.meta = meta_of(self._fields)

    def _step(self, at: int) -> int:
        """Read the line at index `at`; return the index of the next line to read."""
        row, source = self._rows[at], self.source
        if not row.strip():
            self._end_paragraph()
            return at + 1
        self._leave(at)
        if self._literal_below is not None and (end := self._literal(at)):
            return end
        if end := self._heading(at):
            return end
        if source.open is None and _GRID.match(row) and (end := self._grid(at)):
            return end
        if source.open is None and _SIMPLE.match(row) and (end := self._simple(at)):
            return end
        if directive := _DIRECTIVE.match(row):
            return self._directive(at, directive)
        if not source.blocks or len(source.marks) == len(source.blocks):
            self._field(row)  # above all text but the title: what the document says of itself
        source.prose(at, item=_ITEM.match(row) is not None or row.startswith(".. "))
        return at + 1

    def _field(self, row: str) -> None:
        if field := _FIELD.match(row):
            self._fields.setdefault(field[1], field[2])

    def _end_paragraph(self) -> None:
        """A blank line. After `::` the indented lines below are literal."""
        first, source = self.source.open, self.source
        source.close()
        if first is not None:
            block = source.blocks[-1]
            last = source.text[block.start : block.end].rstrip().rsplit("\n", 1)[-1]
            directive = last.lstrip().startswith(".. ")
            if last.endswith("::") and not directive:
                self._literal_below = _indent(last)

    def _literal(self, at: int) -> int:
        """Read a literal block: lines deeper than the paragraph above, or quoted as in an e-mail."""
        above, self._literal_below = self._literal_below or 0, None
        row = self._rows[at]
        if _indent(row) > above:
            end = self._below(at, above)
        elif _LINE.match(row.strip()[:1] * 2) and not _DIRECTIVE.match(row):
            end = at
            while end < len(self._rows) and self._rows[end].startswith(row[: above + 1]):
                end += 1
        else:
            return 0
        self.source.add(at, end - 1, "code")
        return end

    def _below(self, at: int, indent: int) -> int:
        """Return the index behind the lines from `at` on that are blank or deeper than `indent`."""
        end = at
        while end < len(self._rows) and (
            not self._rows[end].strip() or _indent(self._rows[end]) > indent
        ):
            end += 1
        while end > at and not self._rows[end - 1].strip():
            end -= 1
        return end

    def _heading(self, at: int) -> int:
        """Read a heading that begins here, or whose underline this is; 0 when it is none."""
        rows, row, source = self._rows, self._rows[at], self.source
        if not _LINE.match(row):
            return 0
        if source.is_one_line and source.open == at - 1:
            words = rows[at - 1]
            if words[:1].isspace() or not _long_enough(row, words):
                return 0
            source.drop()
            self._enter(at - 1, at, row[0], False, words)
            return at + 1
        if source.open is not None:
            return 0
        if at + 2 < len(rows) and rows[at + 2].rstrip() == row.rstrip() and rows[at + 1].strip():
            if _SIMPLE.match(row) or not _long_enough(row, rows[at + 1].strip()):
                return 0
            self._enter(at, at + 2, row[0], True, rows[at + 1])
            return at + 3
        alone = at + 1 >= len(rows) or not rows[at + 1].strip()
        if alone and len(row.rstrip()) >= 4:
            source.add(at, at, "break")
            return at + 1
        return 0

    def _enter(self, first: int, last: int, mark: str, over: bool, words: str) -> None:
        """Add a heading. Its level is that of the first one underlined like it."""
        style = (mark, over)
        if style not in self._styles:
            self._styles.append(style)
        self._defined.clear()
        self.source.heading(first, last, self._styles.index(style) + 1, words.strip())

    def _directive(self, at: int, found: re.Match[str]) -> int:
        indent, name, words = len(found[1].expandtabs()), found[2].lower(), (found[3] or "").strip()
        end = self._below(at + 1, indent)
        kind = name.rsplit(":", 1)[-1]
        if kind in _CODE:
            self.source.add(at, end - 1, "code")
            return end
        if (
            kind in _DEFINES
            and words
            and indent <= (self._defined[-1][0] + 8 if self._defined else 0)
        ):
            return self._definition(at, indent, words)
        if kind == "list-table" and (below := self._list_table(at, end)):
            return below
        if kind == "csv-table" and (below := self._csv_table(at, end)):
            return below
        self._head(at)
        return at + 1

    def _head(self, at: int) -> None:
        """Begin a paragraph with the first line of a directive; its options belong to it."""
        self.source.close()
        self.source.prose(at)

    def _definition(self, at: int, indent: int, words: str) -> int:
        """Read the signatures of a definition: the first one's name is a heading over what follows."""
        last = at
        while (
            last + 1 < len(self._rows)
            and self._rows[last + 1].strip()
            and (_indent(self._rows[last + 1]) > indent)
        ):
            last += 1
        self._defined.append((indent, words[:_MAX_NAME_CHARS]))
        self.source.add(at, last, "heading")
        self.source.under(at, self._names())
        return last + 1

    def _names(self) -> str | None:
        return " > ".join(name for _, name in self._defined) or None

    def _leave(self, at: int) -> None:
        """Close the definitions whose description ends above line `at`."""
        n_open = len(self._defined)
        while self._defined and _indent(self._rows[at]) <= self._defined[-1][0]:
            self._defined.pop()
        if len(self._defined) < n_open:
            self.source.close()
            self.source.under(at, self._names())

    def _grid(self, at: int) -> int:
        """Read a grid table: `+---+` lines part its rows, `+===+` stands below its head."""
        end = at
        while end < len(self._rows) and self._rows[end].lstrip()[:1] in ("+", "|"):
            end += 1
        edges = [index for index in range(at, end) if _GRID.match(self._rows[index])]
        if len(edges) < 2:
            return 0
        heads = [index for index in edges if _GRID_HEAD.match(self._rows[index])]
        rows = rows_between(edges)
        rows[-1] = (rows[-1][0], end - 1)  # the table's last line
        if heads and heads[0] > at:
            inner = [row for row in rows if row[0] >= heads[0]]
            rows = [(at, heads[0]), *((first + (first == heads[0]), last) for first, last in inner)]
            head = self.source.between(at, heads[0])
        else:
            head = None
        self.source.table([row for row in rows if row[0] <= row[1]], head)
        return end

    def _simple(self, at: int) -> int:
        """Read a simple table: `=== ===` above, below the head, and below the last row."""
        rows = self._rows
        borders = [at]
        end = at + 1
        while end < len(rows) and len(borders) < 3:
            if _SIMPLE.match(rows[end]):
                borders.append(end)
                if end + 1 >= len(rows) or not rows[end + 1].strip():
                    break
            end += 1
        if len(borders) < 2:
            return 0
        last = borders[-1]
        has_head = len(borders) == 3
        first = borders[1] + 1 if has_head else at
        indent = _indent(rows[at])
        starts = [
            index
            for index in range(first, last)
            if index == first or (rows[index].strip() and _indent(rows[index]) == indent)
        ]
        spans = rows_between([*starts, last])
        if not spans:
            return 0
        spans[-1] = (spans[-1][0], last)
        head = self.source.between(at, borders[1]) if has_head else None
        self.source.table([(at, borders[1]), *spans] if has_head else spans, head)
        return last + 1

    def _list_table(self, at: int, end: int) -> int:
        """Read a `list-table`: each `* -` begins a row."""
        starts = [index for index in range(at, end) if re.match(r"\s+\* +-", self._rows[index])]
        if not starts:
            return 0
        options = self.source.between(at, starts[0] - 1)
        n_heads = re.search(r":header-rows:\s*([1-9])", options)
        head = None
        if n_heads and len(starts) > int(n_heads[1]):
            lines = self._rows[starts[0] : starts[int(n_heads[1])]]
            cells = [re.sub(r"^\s*(?:\* +)?- *", "", line).strip() for line in lines]
            head = " | ".join(cell for cell in cells if cell)
        self._head(at)
        for index in range(at + 1, starts[0]):
            self.source.prose(index)
        self.source.table(rows_between([*starts, end]), head)
        return end

    def _csv_table(self, at: int, end: int) -> int:
        """Read a `csv-table`: a row for each line below its options."""
        first = at + 1
        while first < end and (_OPTION.match(self._rows[first]) or not self._rows[first].strip()):
            first += 1
        if first >= end:
            return 0
        options = self.source.between(at, first - 1)
        header = re.search(r":header:\s*(.+)", options)
        by_rows = re.search(r":header-rows:\s*[1-9]", options)
        head = header[1].strip() if header else self._rows[first].strip() if by_rows else None
        self._head(at)
        for index in range(at + 1, first):
            if self._rows[index].strip():
                self.source.prose(index)
        lines = [index for index in range(first, end) if self._rows[index].strip()]
        self.source.table([(index, index) for index in lines], head)
        return end


def _indent(row: str) -> int:
    return len(row.expandtabs()) - len(row.expandtabs().lstrip())


def _long_enough(line: str, words: str) -> bool:
    """May this line stand under these words? docutils takes a shorter one from four characters on."""
    width = sum(
        2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c)
        for c in words.rstrip()
    )
    return len(line.rstrip()) >= min(width, 4)
