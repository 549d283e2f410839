"""PowerPoint files: a page per slide, with tables, the numbers of charts, speaker notes and comments."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from epicrag.connectors.base import (
    Limits,
    Parsed,
    RefusedError,
    Watch,
    refusing,
    too_many_parts,
)
from epicrag.connectors.charts import diagram_texts, write_chart
from epicrag.connectors.docx_text import image_text
from epicrag.connectors.omml import linear
from epicrag.connectors.ooxml import Package
from epicrag.connectors.prose import Prose
from epicrag.connectors.rows import one_line
from epicrag.connectors.tables import TableCell, TableRow, write_table
from epicrag.connectors.xmls import local
from epicrag.types import Unread

MEDIA = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_BANDS = 24
"""Shapes whose upper edges lie within this share of a slide's height stand side by side."""
_NO_TYPE = "obj"
"""What a placeholder without a type is."""
_MARGINS = frozenset(["sldNum", "dt", "ftr", "hdr"])


@refusing
def parse_pptx(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a presentation. Slide numbers, dates and footers are left out; hidden slides are not."""
    import pptx
    from pptx.exc import PythonPptxError

    package = Package(data, limits, "PowerPoint")
    if not package.related(package.main, "slideMaster"):
        return Unread(
            "failed", "a ZIP archive of Office, but not a PowerPoint file: name it as what it is"
        )
    try:
        presentation = pptx.Presentation(package.for_library(data))
    except (
        PythonPptxError,
        SyntaxError,
        KeyError,
        ValueError,
        AttributeError,
        struct.error,
    ) as error:
        return Unread("failed", f"damaged PowerPoint file: {type(error).__name__}: {error}"[:300])
    reader = _Reader(package, presentation, limits)
    reader.run()
    return reader.prose.parsed(MEDIA, package.meta())


class _Reader:
    """Goes through the slides in the order they are shown."""

    def __init__(self, package: Package, presentation: Any, limits: Limits) -> None:
        self._package = package
        self._presentation = presentation
        self._limits = limits
        self._watch = Watch(limits)
        self._authors = _authors(package)
        self._band = max(int(presentation.slide_height or 0) // _BANDS, 1)
        self.prose = Prose()
        self.draft = self.prose.draft

    def run(self) -> None:
        slides = self._presentation.slides
        if len(slides) > self._limits.max_pages:
            raise RefusedError(too_many_parts(len(slides), self._limits.max_pages, "slides"))
        for number, slide in enumerate(slides, 1):
            self._watch.check(self.draft.length)
            self.draft.page, self.draft.part = number, f"slide {number}"
            self.draft.leave_headings()
            self._slide(slide, number)

    def _slide(self, slide: Any, number: int) -> None:
        _choose_alternatives(slide._element)
        title = slide.shapes.title
        if title is not None and (text := one_line(_frame_text(title))):
            self.prose.slide(number, text)
        for shape in self._in_order(slide.shapes):
            if title is None or shape._element is not title._element:
                self._shape(shape, slide)
        self._notes(slide)
        for author, text in self._comments(slide):
            self.prose.plain(f"[Comment by {author}: {text}]" if author else f"[Comment: {text}]")

    def _in_order(self, shapes: Any) -> list[Any]:
        """Shapes as they are read: from the top, and from the left where they stand side by side."""
        return sorted(shapes, key=lambda shape: ((shape.top or 0) // self._band, shape.left or 0))

    def _shape(self, shape: Any, slide: Any) -> None:
        if _margin(shape._element):
            return
        if hasattr(shape, "shapes"):
            for inner in self._in_order(shape.shapes):
                self._shape(inner, slide)
        elif getattr(shape, "has_table", False):
            self._table(shape.table)
        elif getattr(shape, "has_chart", False):
            self._chart(shape.chart._chartSpace)
        elif shape.has_text_frame:
            self._frame(shape)
        else:
            self._picture(shape, slide)

    def _frame(self, shape: Any) -> None:
        """Write a shape's paragraphs; in a body of several they are the items of a list."""
        body = shape._element.find(f".//{_A}p/..")
        paragraphs = [node for node in (body if body is not None else ()) if node.tag == f"{_A}p"]
        texts = [(node, paragraph_text(node).strip()) for node in paragraphs]
        texts = [(node, text) for node, text in texts if text]
        is_list = len(texts) > 1 and _kind(shape._element) in ("body", _NO_TYPE)
        number = 0
        gap = "\n\n"
        for node, text in texts:
            mark, number = _mark(node, is_list, number)
            self.draft.open("row" if mark else "paragraph", gap)
            if mark:
                self.draft.write_exact("  " * _depth(node) + mark)
            self.draft.write_exact(text)
            self.draft.close()
            gap = "\n"

    def _table(self, table: Any) -> None:
        rows = [
            TableRow([_cell(cell) for cell in row.cells if not cell._tc.hMerge])
            for row in table.rows
        ]
        if table.first_row and rows and len([cell for cell in rows[0].cells if cell.text]) > 1:
            rows[0].is_head = all(cell.span == 1 for cell in rows[0].cells)
        write_table(self.draft, rows, self._watch)

    def _chart(self, root: Any) -> None:
        write_chart(self.prose, root)

    def _picture(self, shape: Any, slide: Any) -> None:
        """Write what stands for a picture, or the texts of a diagram."""
        for node in shape._element.iter():
            if local(node) == "relIds" and (part := node.get(f"{_R}dm")):
                relation = self._package.relations_by_id(_name(slide)).get(part)
                if relation and self._package.has(relation.target):
                    for text in diagram_texts(self._package.xml(relation.target)):
                        self.prose.plain(text)
                return
        described = shape._element.find(".//*[@descr]")
        if described is not None and (text := image_text(described.get("descr"))):
            self.prose.plain(f"[Image: {text}]")

    def _notes(self, slide: Any) -> None:
        if not slide.has_notes_slide:
            return
        for shape in slide.notes_slide.shapes:
            is_notes = shape.has_text_frame and _kind(shape._element) == "body"
            if is_notes and (text := _frame_text(shape).strip()):
                self.prose.plain(f"Notes: {text}")

    def _comments(self, slide: Any) -> Iterator[tuple[str, str]]:
        """Yield (author, text) of a slide's comments and replies, of older and newer programs."""
        for part in self._package.related(_name(slide), "comments"):
            for node in self._package.xml(part).iter():
                if local(node) not in ("cm", "reply"):
                    continue
                author = self._authors.get(node.get("authorId", ""), "")
                texts = [child for child in node if local(child) in ("text", "txBody")]
                text = " ".join(one_line(" ".join(child.itertext())) for child in texts)
                if text:
                    yield author, text


def _authors(package: Package) -> dict[str, str]:
    """The names of those who commented, by their ids."""
    parts = package.related(package.main, "commentAuthors") + package.related(
        package.main, "authors"
    )
    nodes = [node for part in parts for node in package.xml(part)]
    return {node.get("id", ""): one_line(node.get("name", "")) for node in nodes}


def _name(slide: Any) -> str:
    return str(slide.part.partname).lstrip("/")


def _choose_alternatives(slide: Any) -> None:
    """Replace what is stored twice, for newer and older programs, by one of both: libraries see neither."""
    for node in list(slide.iter(f"{_MC}AlternateContent")):
        above = node.getparent()
        choices = [child for child in node if len(child)]
        if above is None or not choices:
            continue
        chosen = next((c for c in choices if any(local(n) in _READABLE for n in c.iter())), None)
        for child in list(chosen if chosen is not None else choices[-1]):
            node.addprevious(child)
        if node.tail:
            node.tail = None
        above.remove(node)


_READABLE = frozenset(["sp", "graphicFrame", "grpSp", "pic", "oMath", "oMathPara", "r"])


def _placeholder(element: Any) -> Any:
    return next((node for node in element.iter() if local(node) == "ph"), None)


def _kind(element: Any) -> str | None:
    """The type of a placeholder; None for a shape that is none."""
    if local(element) == "grpSp" or (node := _placeholder(element)) is None:
        return None
    return str(node.get("type", _NO_TYPE))


def _margin(element: Any) -> bool:
    return _kind(element) in _MARGINS


def paragraph_text(node: Any) -> str:
    """The text of a DrawingML paragraph."""
    parts: list[str] = []
    for child in node:
        kind = local(child)
        if kind in ("r", "fld"):
            parts += [text.text or "" for text in child if local(text) == "t"]
        elif kind == "br":
            parts.append("\n")
        elif kind in ("m", "oMath", "oMathPara"):
            parts.append(linear(child))
    return "".join(parts).replace("\v", "\n")


def _frame_text(shape: Any) -> str:
    return "\n".join(paragraph_text(node) for node in shape._element.iter(f"{_A}p"))


def _cell(cell: Any) -> TableCell:
    if cell._tc.vMerge:
        return TableCell("", min(max(cell._tc.gridSpan, 1), 64))
    text = one_line(" ".join(paragraph_text(node) for node in cell._tc.iter(f"{_A}p")))
    return TableCell(text, min(max(cell._tc.gridSpan, 1), 64))


def _depth(node: Any) -> int:
    properties = node.find(f"{_A}pPr")
    level = properties.get("lvl", "0") if properties is not None else "0"
    return min(int(level), 8) if level.isdigit() else 0


def _mark(node: Any, is_list: bool, number: int) -> tuple[str, int]:
    """What stands before a paragraph, and how far its numbers have been counted."""
    properties = node.find(f"{_A}pPr")
    kinds = [local(child) for child in properties] if properties is not None else []
    if "buAutoNum" in kinds:
        return f"{number + 1}. ", number + 1
    if "buNone" in kinds or not (is_list or "buChar" in kinds or "buBlip" in kinds):
        return "", 0
    return "- ", number if _depth(node) else 0
