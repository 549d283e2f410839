"""OpenDocument texts and slides: headings, lists, tables, notes, comments, frames, speaker notes."""

from __future__ import annotations

import re
from typing import Any

from epicrag.connectors.base import (
    Limits,
    Parsed,
    RefusedError,
    Watch,
    refusing,
    too_many_parts,
)
from epicrag.connectors.docx_text import image_text
from epicrag.connectors.odf import (
    DRAW,
    OFFICE,
    PRESENTATION,
    SKIPPED,
    STYLE,
    SVG,
    TABLE,
    TEXT,
    XLINK,
    OdfInline,
    OdfPackage,
    OdfText,
    table_rows,
)
from epicrag.connectors.prose import Prose
from epicrag.connectors.tables import write_table
from epicrag.connectors.xmls import iterate_xml, local
from epicrag.types import Unread

_MEDIA = "application/vnd.oasis.opendocument."
_LENGTH = re.compile(r"(-?[\d.]+)\s*(cm|mm|in|pt|pc|px)?")
_UNITS = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 0.0353, "pc": 0.423, "px": 0.0265, None: 1.0}
_MARGINS = frozenset(["page-number", "date-time", "footer", "header", "page"])
_MAX_DEPTH = 40
_TOPS = (
    f"{OFFICE}automatic-styles",
    f"{OFFICE}annotation",
    f"{DRAW}frame",
    f"{DRAW}g",
    f"{TABLE}table",
    *(TEXT + name for name in ("h", "p", "list", "section", "numbered-paragraph")),
    *(TEXT + name for name in ("table-of-content", "bibliography", "tracked-changes")),
)
"""What may stand directly in the body of a text."""


@refusing
def parse_odt(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a text document. Tracked deletions, hidden text and tables of contents are left out."""
    package = OdfPackage(data, limits, "OpenDocument text", "text")
    reader = _Reader(package, limits)
    reader.styles(package.xml("styles.xml"))
    with package.open("content.xml") as file:
        for node in iterate_xml(file, "content.xml", _TOPS):
            above = node.getparent()
            if node.tag == f"{OFFICE}automatic-styles":
                reader.styles(node)
            elif above is not None and above.tag == f"{OFFICE}text":
                reader.block(node)
                node.clear()
                while node.getprevious() is not None:
                    del above[0]
    return reader.prose.parsed(f"{_MEDIA}text", package.meta())


@refusing
def parse_odp(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a presentation: a page per slide."""
    package = OdfPackage(data, limits, "OpenDocument slides", "presentation")
    reader = _Reader(package, limits)
    root = package.xml("content.xml")
    reader.styles(package.xml("styles.xml"))
    reader.styles(root)
    slides = list(root.iter(f"{DRAW}page"))
    if len(slides) > limits.max_pages:
        raise RefusedError(too_many_parts(len(slides), limits.max_pages, "slides"))
    for number, slide in enumerate(slides, 1):
        reader.slide(slide, number)
    return reader.prose.parsed(f"{_MEDIA}presentation", package.meta())


class _Reader:
    """Writes what it is given, in order."""

    def __init__(self, package: OdfPackage, limits: Limits) -> None:
        self._package = package
        self._watch = Watch(limits)
        self._text = OdfText()
        self._titles = {"Title"}
        self._parents: dict[str, str] = {}
        self._numbered: dict[str, set[int]] = {}
        self.prose = Prose()
        self.draft = self.prose.draft

    def styles(self, root: Any) -> None:
        """Take note of the styles that hide text, of those of titles, and of lists with numbers."""
        for node in root.iter(f"{STYLE}style", f"{TEXT}list-style") if root is not None else ():
            name = node.get(f"{STYLE}name", "")
            if local(node) == "list-style":
                levels = node.findall(f"{TEXT}list-level-style-number")
                shown = [level for level in levels if level.get(f"{STYLE}num-format")]
                self._numbered[name] = {int(level.get(f"{TEXT}level", "1")) for level in shown}
                continue
            self._parents[name] = node.get(f"{STYLE}parent-style-name", "")
            properties = node.find(f"{STYLE}text-properties")
            if properties is not None and properties.get(f"{TEXT}display") == "none":
                self._text.hidden.add(name)

    # --- blocks ---

    def block(self, node: Any, depth: int = 0) -> None:
        """Write a paragraph, a list, a table, or whatever holds them."""
        self._watch.check(self.draft.length)
        name = local(node)
        if not name or name in SKIPPED or depth > _MAX_DEPTH:
            return
        if node.tag in (f"{TEXT}p", f"{TEXT}h"):
            self._paragraph(node)
        elif name == "list":
            self._list(node, 0, node.get(f"{TEXT}style-name", ""))
            self.prose.end_list()
        elif node.tag == f"{TABLE}table":
            self._table(node)
        elif node.tag.startswith(DRAW):
            self._frame(node, depth + 1)
        elif not (name == "section" and node.get(f"{TEXT}display") == "none"):
            for child in node:
                self.block(child, depth + 1)

    def _paragraph(self, node: Any, mark: str | None = None, depth: int = 0) -> None:
        style = node.get(f"{TEXT}style-name", "")
        if style in self._text.hidden:
            return
        inline = self._text.read(node)
        text = inline.text.strip()
        level = self._level(node, style)
        if text:
            self.prose.text(text, level, mark, depth)
        self._attached(inline)

    def _level(self, node: Any, style: str) -> int | None:
        if self._is_title(style):
            return 0
        if local(node) != "h":
            return None
        level = node.get(f"{TEXT}outline-level", "1")
        return min(max(int(level), 1), 10) if level.isdigit() else 1

    def _is_title(self, style: str) -> bool:
        seen = set()
        while style and style not in seen:
            if style in self._titles:
                return True
            seen.add(style)
            style = self._parents.get(style, "")
        return False

    def _list(self, node: Any, depth: int, style: str) -> None:
        """Write a list; of several paragraphs in an item only the first has a mark."""
        style = node.get(f"{TEXT}style-name", "") or style
        number = 0
        for item in node:
            if local(item) not in ("list-item", "list-header") or depth > _MAX_DEPTH:
                continue
            number += local(item) == "list-item"
            numbered = depth + 1 in self._numbered.get(style, ())
            mark = f"{number}." if numbered else "-"
            for child in item:
                if local(child) == "list":
                    self._list(child, depth + 1, style)
                elif local(child) in ("p", "h"):
                    is_first = local(item) == "list-item" and mark
                    self._paragraph(child, mark if is_first else "", depth)
                    mark = ""
                else:
                    self.block(child)

    def _table(self, node: Any) -> None:
        self.prose.end_list()
        rows = list(table_rows(node, self._text))
        if all(len(row.cells) <= 1 for row in rows):
            for cell in node.iter(f"{TABLE}table-cell"):  # a frame around text, not a table
                for child in cell:
                    self.block(child, 1)
            return
        write_table(self.draft, rows, self._watch)

    # --- what hangs on a paragraph ---

    def _attached(self, inline: OdfInline) -> None:
        for frame in inline.frames:
            self._frame(frame, 1)
        for label, node in inline.notes:
            if text := self._text.line(node):
                is_comment = label.startswith("Comment")
                self.prose.plain(f"[{label}: {text}]" if is_comment else f"{label}: {text}")

    def _frame(self, node: Any, depth: int) -> None:
        """Write what a frame or a shape holds: text, a table, an object, or what stands for an image."""
        if depth > _MAX_DEPTH:
            return
        for child in node:
            name = local(child)
            if name in ("text-box", "g", "frame", "custom-shape", "rect", "a", "ellipse"):
                self._frame(child, depth + 1)
            elif name in ("p", "h", "list", "table", "section"):
                self.block(child, depth + 1)
            elif name == "object":
                self._object(self._package.object(child.get(f"{XLINK}href")))
                return  # a picture of it may follow
            elif name in ("desc", "title") and (text := image_text(child.text)):
                self.prose.plain(f"[Image: {text}]")

    def _object(self, root: Any) -> None:
        """Write an embedded chart's numbers, or a formula."""
        if root is None:
            return
        if local(root) == "math":
            annotation = next((node for node in root.iter() if local(node) == "annotation"), None)
            if annotation is not None:
                annotation.getparent().remove(annotation)
            if text := "".join(part.strip() for part in root.itertext()):
                self.prose.plain(text)
            return
        for title in root.iter():
            if local(title) == "title" and (text := self._text.line(title)):
                self.prose.plain(text)
        for table in root.iter(f"{TABLE}table"):
            self._table(table)

    # --- slides ---

    def slide(self, node: Any, number: int) -> None:
        """Write a slide: its title, its shapes in reading order, its notes."""
        self.draft.page, self.draft.part = number, f"slide {number}"
        self.draft.leave_headings()
        shapes = [child for child in node if child.tag != f"{PRESENTATION}notes"]
        titles = [shape for shape in shapes if shape.get(f"{PRESENTATION}class") == "title"]
        if titles and (text := self._text.line(titles[0])):
            self.prose.slide(number, text)
        for shape in sorted(shapes, key=_position):
            if shape not in titles[:1] and shape.get(f"{PRESENTATION}class") not in _MARGINS:
                if local(shape) == "annotation":
                    self._attached(OdfInline(notes=[(_comment_label(shape), shape)]))
                elif isinstance(shape.tag, str) and shape.tag.startswith(DRAW):
                    self._frame(shape, 1)
        for frame in node.iterfind(f"{PRESENTATION}notes/{DRAW}frame"):
            if frame.get(f"{PRESENTATION}class") == "notes" and (text := self._text.line(frame)):
                self.prose.plain(f"Notes: {text}")


def _comment_label(node: Any) -> str:
    creator = next((child.text for child in node if local(child) == "creator"), None)
    return f"Comment by {creator}" if creator else "Comment"


def _position(node: Any) -> tuple[int, float]:
    """From the top in steps of half a centimetre or so, then from the left."""
    return int(_length(node.get(f"{SVG}y")) / 0.8), _length(node.get(f"{SVG}x"))


def _length(text: str | None) -> float:
    found = _LENGTH.fullmatch((text or "").strip())
    try:
        return float(found[1]) * _UNITS[found[2]] if found else 0.0
    except ValueError:
        return 0.0
