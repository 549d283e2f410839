"""Word files: the body in order, with headings, lists, tables, boxes, notes, comments and equations."""

from __future__ import annotations

import re
from typing import Any

from epicrag.connectors.base import Limits, Parsed, Watch, refusing
from epicrag.connectors.charts import diagram_texts, write_chart
from epicrag.connectors.docx_styles import Numbers, Styles, W, as_int, is_on, number_of
from epicrag.connectors.docx_text import Inline, Runs, is_placeholder
from epicrag.connectors.margins import only_in_margins
from epicrag.connectors.ooxml import Package
from epicrag.connectors.prose import Prose
from epicrag.connectors.rows import one_line
from epicrag.connectors.tables import TableCell, TableRow, write_table
from epicrag.connectors.xmls import iterate_xml, local
from epicrag.types import Unread

MEDIA = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_WRAPPERS = frozenset(["ins", "moveTo", "customXml", "smartTag", "sdtContent", "body", "Choice"])
_CONTENTS = re.compile(r"toc \d|table of figures|toc heading")
_MAX_SPAN = 64


@refusing
def parse_docx(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a Word file. Tracked deletions, hidden text and tables of contents are left out."""
    package = Package(data, limits, "Word")
    if _head_of(package) != "document":
        return Unread(
            "failed", "a ZIP archive of Office, but not a Word file: name it as what it is"
        )
    reader = _Reader(package, limits)
    reader.run()
    return reader.prose.parsed(MEDIA, package.meta())


def _head_of(package: Package) -> str:
    """The name of the main part's root element."""
    with package.open(package.main) as file:
        found = re.search(rb"<(?:\w+:)?(\w+)[\s>]", re.sub(rb"<[?!][^>]*>", b"", file.read(8192)))
    return found[1].decode("ascii", "replace") if found else ""


class _Reader:
    """Walks the body once, from top to bottom, and lets go of what it has read."""

    def __init__(self, package: Package, limits: Limits) -> None:
        self._package = package
        self._watch = Watch(limits)
        self._related = {
            kind: parts[0]
            for kind in ("styles", "numbering", "footnotes", "endnotes", "comments")
            if (parts := package.related(package.main, kind))
        }
        self._relations = package.relations_by_id(package.main)
        self._styles = Styles(self._root("styles"))
        self._numbers = Numbers(self._root("numbering"))
        self._runs = Runs()
        self._notes: dict[str, dict[str, Any]] = {}
        self._told: set[tuple[str, str]] = set()
        self._pending: list[tuple[str, str]] = []
        self.prose = Prose()
        self.draft = self.prose.draft

    def run(self) -> None:
        with self._package.open(self._package.main) as file:
            tags = tuple(W + name for name in ("p", "tbl", "sdt", "ins", "moveTo", "customXml"))
            for node in iterate_xml(file, self._package.main, tags):
                above = node.getparent()
                if above is None or above.tag != f"{W}body":
                    continue
                self._block(node)
                node.clear()
                while node.getprevious() is not None:
                    del above[0]
        self._leftovers()
        self._margins()

    # --- blocks ---

    def _block(self, node: Any) -> None:
        name = local(node)
        if name == "p":
            self._paragraph(node)
        elif name == "tbl":
            self._table(node)
        elif name == "sdt":
            if not is_placeholder(node):
                self._blocks(node)
        elif name == "AlternateContent":
            self._blocks(next(iter(node), ()))
        elif name in _WRAPPERS:
            self._blocks(node)

    def _blocks(self, nodes: Any) -> None:
        for node in nodes:
            self._block(node)

    def _paragraph(self, node: Any) -> None:
        self._watch.check(self.draft.length)
        properties = node.find(f"{W}pPr")
        style = _style_of(properties) or self._styles.default
        inline = self._runs.read(node)
        if _CONTENTS.fullmatch(self._styles.name(style)) or self._styles.is_hidden(style):
            return
        text = inline.text.strip(" \n")
        if text.strip():
            self._write(text, properties, style)
        self._attached(inline)
        if self._pending:
            self._tell()

    def _write(self, text: str, properties: Any, style: str | None) -> None:
        level = self._level(properties, style)
        number = number_of(properties) if properties is not None else None
        number = number or self._styles.number(style)
        mark = self._numbers.mark(*number) if number and number[0] != "0" else None
        self.prose.text(text, level, mark, number[1] if number else 0)

    def _level(self, properties: Any, style: str | None) -> int | None:
        """The level of a heading, from 1; 0 for the title; None for what is none."""
        own = properties.find(f"{W}outlineLvl") if properties is not None else None
        level = as_int(own.get(f"{W}val")) if own is not None else None
        if level is None:
            return self._styles.level(style)
        return level + 1 if 0 <= level < 9 else None

    # --- what hangs on a paragraph ---

    def _attached(self, inline: Inline) -> None:
        """Write boxes and charts behind their paragraph; notes wait for the end of the block."""
        self._pending += inline.notes
        for box in inline.boxes:
            self._blocks(box)
        for kind, target in inline.drawings:
            if kind == "image":
                self.prose.plain(f"[Image: {target}]")
            elif (relation := self._relations.get(target)) and self._package.has(relation.target):
                self._drawing(kind, self._package.xml(relation.target))

    def _drawing(self, kind: str, root: Any) -> None:
        self.prose.end_list()
        if kind == "diagram":
            for text in diagram_texts(root):
                self.prose.plain(text)
            return
        write_chart(self.prose, root)

    def _tell(self) -> None:
        """Write the notes and comments that were referred to, each once."""
        pending, self._pending = self._pending, []
        for key in pending:
            if key in self._told:
                continue
            self._told.add(key)
            kind, note = key
            node = self._notes_of(kind).get(note)
            if node is None:
                continue
            text = self._text_of(node)
            if not text:
                continue
            if kind == "comment":
                author = one_line(node.get(f"{W}author") or "")
                self.prose.plain(
                    f"[Comment by {author}: {text}]" if author else f"[Comment: {text}]"
                )
            else:
                self.prose.plain(f"{kind.capitalize()} {self._runs.numbers.get(key, note)}: {text}")

    def _leftovers(self) -> None:
        """Comments that nothing in the body refers to."""
        self._pending += [("comment", note) for note in self._notes_of("comment")]
        self._tell()

    def _notes_of(self, kind: str) -> dict[str, Any]:
        part = f"{kind}s"
        if part not in self._notes:
            root = self._root(part)
            found = root.findall(W + kind) if root is not None else ()
            self._notes[part] = {
                node.get(f"{W}id", ""): node
                for node in found
                if node.get(f"{W}type") in (None, "normal")
            }
        return self._notes[part]

    def _text_of(self, node: Any) -> str:
        """All text of a note, a cell or a header, on one line."""
        texts = []
        for paragraph in node.iter(f"{W}p"):
            inline = self._runs.read(paragraph)
            texts.append(inline.text)
            self._pending += [key for key in inline.notes if key not in self._told]
        return one_line(" ".join(texts))

    def _root(self, kind: str) -> Any:
        return self._package.xml(self._related[kind]) if kind in self._related else None

    # --- tables ---

    def _table(self, node: Any) -> None:
        self.prose.end_list()
        rows = list(_children(node, "tr"))
        if all(len(list(_children(row, "tc"))) <= 1 for row in rows):
            for row in rows:  # one column: a frame around text, not a table
                for cell in _children(row, "tc"):
                    self._blocks(cell)
            return
        write_table(self.draft, [row for row in map(self._row, rows) if row], self._watch)
        if self._pending:
            self._tell()

    def _row(self, node: Any) -> TableRow | None:
        properties = node.find(f"{W}trPr")
        row = TableRow()
        if properties is not None:
            if properties.find(f"{W}del") is not None:
                return None
            row.is_head = is_on(properties.find(f"{W}tblHeader"))
            before = properties.find(f"{W}gridBefore")
            if before is not None:
                row.cells.append(TableCell("", _span(before)))
        for cell in _children(node, "tc"):
            own = cell.find(f"{W}tcPr")
            span, goes_on = 1, False
            if own is not None:
                span = _span(own.find(f"{W}gridSpan"))
                goes_on = _goes_on(own)
            row.cells.append(TableCell("" if goes_on else self._cell(cell), span))
        return row

    def _cell(self, node: Any) -> str:
        """A cell's text on one line; of a table within it, its cells joined by commas."""
        texts: list[str] = []
        for child in node:
            name = local(child)
            if name == "p":
                inline = self._runs.read(child)
                texts += [inline.text, *(self._text_of(box) for box in inline.boxes)]
                self._pending += inline.notes
            elif name == "tbl":
                rows = [self._row(row) for row in _children(child, "tr")]
                lines = [", ".join(text for text in row.texts() if text) for row in rows if row]
                texts.append("; ".join(line for line in lines if line))
            elif (name == "sdt" and not is_placeholder(child)) or name in _WRAPPERS:
                texts.append(self._cell(child))
        return one_line(" ".join(texts))

    # --- headers and footers ---

    def _margins(self) -> None:
        """Write what only headers and footers say: a letterhead, a mark of confidence, a version."""
        texts = [
            (kind, self._runs.read(paragraph).text)
            for kind in ("header", "footer")
            for part in self._package.related(self._package.main, kind)
            for paragraph in self._package.xml(part).iter(f"{W}p")
        ]
        self.draft.leave_headings()
        for line in only_in_margins(texts, self.draft.text()):
            self.prose.plain(line)


def _style_of(properties: Any) -> str | None:
    node = properties.find(f"{W}pStyle") if properties is not None else None
    return node.get(f"{W}val") if node is not None else None


def _children(node: Any, name: str) -> Any:
    """The rows of a table or the cells of a row, those within content controls and insertions too."""
    for child in node:
        kind = local(child)
        if kind == name:
            yield child
        elif kind in ("sdt", "sdtContent", "ins", "customXml", "moveTo"):
            yield from _children(child, name)


def _span(node: Any) -> int:
    value = as_int(node.get(f"{W}val")) if node is not None else None
    return min(max(value or 1, 1), _MAX_SPAN)


def _goes_on(properties: Any) -> bool:
    """Is a cell the rest of the one above, or of the one before it?"""
    for name in ("vMerge", "hMerge"):
        node = properties.find(W + name)
        if node is not None and node.get(f"{W}val", "continue") != "restart":
            return True
    return False
