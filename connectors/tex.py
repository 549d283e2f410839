"""LaTeX: the source text exactly, cut at sections, environments, items and table rows."""

from __future__ import annotations

import re
from bisect import bisect_left

from epicrag.connectors.base import Parsed
from epicrag.connectors.meta import meta_of
from epicrag.connectors.source import Source, rows_between

_BRACED = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_SECTION = re.compile(
    r"[ \t]*\\(part|chapter|section|subsection|subsubsection|paragraph|subparagraph)\*?"
    r"[ \t]*(?:\[[^\]]*\])?" + _BRACED
)
_LEVELS = ["part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph"]
_BEGIN = re.compile(r"[ \t]*\\begin\{([\w*]+)\}")
_END = re.compile(r"\\end\{([\w*]+)\}")
_CODE = frozenset(
    [
        "verbatim",
        "Verbatim",
        "lstlisting",
        "minted",
        "alltt",
        "equation",
        "align",
        "gather",
        "multline",
        "eqnarray",
        "displaymath",
        "math",
        "tikzpicture",
        "algorithm",
        "algorithmic",
        "filecontents",
    ]
)
_TABLES = frozenset(["tabular", "tabularx", "tabulary", "longtable", "tabular*"])
_ITEM = re.compile(r"[ \t]*\\(?:item|bibitem)\b")
_RULES = re.compile(r"\\(?:hline|toprule|midrule|endhead|cline|cmidrule)")
_COMMAND = re.compile(r"\\(?:label|footnote|thanks|index|cite\w*)\{[^{}]*\}|%.*")
_ROW_END = re.compile(
    r"\\\\(?:\[[^\]\[]{0,80}\])?[ \t]*+(?:\\\w++(?:\{[^{}]{0,80}\})?[ \t]*+)*+(?:%.*)?$"
)
_SAID = {
    name: re.compile(rf"\\{name}[ \t]*(?:\[[^\]]*\])?{_BRACED}")
    for name in ("title", "date", "author")
}


def parse_tex(text: str, encoding: str | None = None) -> Parsed:
    """Read LaTeX as it stands, comments included. Title, author and date are those it declares."""
    scan = _Scan(text)
    scan.run()
    head = text[:50_000]
    said = {name: plain(found[1]) for name, form in _SAID.items() if (found := form.search(head))}
    if "author" in said:
        said["author"] = re.sub(r"\s+and\s+", "; ", said["author"])
    title = said.pop("title", None) or None
    return scan.source.parsed("text/x-tex", encoding, title, meta_of(said))


def plain(source: str) -> str:
    """The words of a short piece of LaTeX, without its commands."""
    source = _COMMAND.sub("", source).replace(r"\\", " ").replace(r"\and", " and ")
    source = re.sub(r"\\([&%$#_{}])", r"\1", source).replace("~", " ")
    source = re.sub(r"\\[a-zA-Z]+\*?[ \t]*", "", source)
    return " ".join(re.sub(r"[{}$]", "", source).split())


class _Scan:
    """One pass over the lines. `source` is complete after `run`."""

    def __init__(self, text: str) -> None:
        self.source = Source(text)
        self._rows = self.source.rows
        self._ends: dict[str, list[int]] = {}
        for at, row in enumerate(self._rows):
            for name in _END.findall(row):
                self._ends.setdefault(name, []).append(at)

    def run(self) -> None:
        self.source.walk(self._step, self._preamble())

    def _preamble(self) -> int:
        """What stands above `\\begin{document}` is settings: one block."""
        for at, row in enumerate(self._rows[:2_000]):
            if row.lstrip().startswith(r"\begin{document}"):
                self.source.add(0, at, "code")
                return at + 1
        return 0

    def _step(self, at: int) -> int:
        """Read the line at index `at`; return the index of the next line to read."""
        row, source = self._rows[at], self.source
        if not row.strip():
            source.close()
        elif row.lstrip().startswith("\\") and (end := self._section(at)):
            return end
        elif begin := _BEGIN.match(row):
            return self._environment(at, begin[1])
        else:
            source.prose(at, item=_ITEM.match(row) is not None)
        return at + 1

    def _section(self, at: int) -> int:
        """Read a section's heading, which may go over a few lines; 0 when there is none."""
        for last in range(at, min(at + 4, len(self._rows))):
            if found := _SECTION.match(self.source.between(at, last)):
                level = _LEVELS.index(found[1]) + 1
                self.source.heading(at, last, level, plain(found[2]))
                return last + 1
        return 0

    def _environment(self, at: int, name: str) -> int:
        bare = name.rstrip("*")
        end = self._end(at, name) if bare in _CODE or name in _TABLES else 0
        if not end:
            self.source.prose(at, item=True)
            return at + 1
        if name in _TABLES:
            return self._table(at, end)
        self.source.add(at, end, "code")
        return end + 1

    def _end(self, at: int, name: str) -> int:
        ends = self._ends.get(name, [])
        first = bisect_left(ends, at)
        return ends[first] if first < len(ends) else 0

    def _table(self, at: int, end: int) -> int:
        """Read a table: a row ends with `\\\\`. The first is its head, where a rule stands below it."""
        starts = [at]
        for index in range(at, end):
            if _ROW_END.search(self._rows[index]):
                starts.append(index + 1)
        rows = rows_between([*starts, end + 1])
        below = self._rows[starts[1]] if len(starts) > 2 else ""
        has_head = bool(
            _RULES.search(below) or (rows and _RULES.search(self._rows[rows[0][1]][-20:]))
        )
        head = None
        if has_head and len(rows) > 1:
            lines = self._rows[rows[0][0] : rows[0][1] + 1]
            cells = [line for line in lines if "&" in line or not _BEGIN.match(line)]
            head = "\n".join(
                line.strip() for line in cells if line.strip() and not _RULES.match(line.strip())
            )
        self.source.table(rows, head)
        return end + 1
