"""Packages of OpenDocument (odt, ods, odp): parts, properties, and the text of paragraphs."""

from __future__ import annotations

import posixpath
import re
import zipfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from epicrag.connectors.base import Limits, RefusedError
from epicrag.connectors.properties import metadata
from epicrag.connectors.tables import TableCell, TableRow
from epicrag.connectors.xmls import local, parse_xml
from epicrag.connectors.zips import advised, open_zip
from epicrag.types import Unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epicrag.types import MetaValue

OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
PRESENTATION = "{urn:oasis:names:tc:opendocument:xmlns:presentation:1.0}"
XLINK = "{http://www.w3.org/1999/xlink}"

_DAMAGE = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError, RuntimeError)
_PROPERTIES = {
    "title": "title",
    "creator": "author",
    "date": "date",
    "subject": "subject",
    "keyword": "keywords",
    "language": "language",
}
_FIRST = {"initial-creator": "author", "creation-date": "date"}
"""What holds only where nobody has changed the document since."""
_SKIPPED = frozenset(
    [
        "tracked-changes",
        "change",
        "change-start",
        "change-end",
        "ruby-text",
        "hidden-text",
        "page-number",
        "sequence-decls",
        "forms",
        "annotation-end",
        "table-of-content",
        "alphabetical-index",
        "illustration-index",
        "table-index",
        "desc",
        "binary-data",
        "event-listeners",
        "glue-point",
    ]
)
SKIPPED = _SKIPPED
MAX_SPAN = 64


class OdfPackage:
    """A package within its limits."""

    def __init__(self, data: bytes, limits: Limits, kind: str, body: str) -> None:
        """Open a package; raises RefusedError saying what is wrong.

        Args:
            kind: what the file should be, for messages.
            body: the element that holds the content of such a file: "text", "spreadsheet" …
        """
        archive = open_zip(data, limits)
        if isinstance(archive, Unread):
            reason = archive.reason
            if archive.status == "failed" and reason.startswith(
                ("not a ZIP", "cut off", "0 bytes")
            ):
                archive = Unread("failed", f"not a whole {kind} file: {advised(reason)}")
            raise RefusedError(archive)
        self._archive = archive
        self._names = set(archive.namelist())
        if "content.xml" not in self._names:
            reason = f"a ZIP archive, but no {kind} file: it has no content.xml"
            raise RefusedError(Unread("failed", f"{reason}; name it as what it is"))
        self._check_lock(kind)
        self._check_body(kind, body)

    def xml(self, name: str) -> Any:
        """The root element of a part; None where there is no such part."""
        if name not in self._names:
            return None
        try:
            data = self._archive.read(name)
        except _DAMAGE as error:
            raise RefusedError(_damaged(name, error)) from error
        return parse_xml(data, name)

    def open(self, name: str) -> IO[bytes]:
        """A part to be read piece by piece."""
        return self._archive.open(name)

    def object(self, href: str | None) -> Any:
        """The content of an embedded object, a chart or a formula; None where there is none."""
        folder = posixpath.normpath(href or "").removeprefix("./")
        return self.xml(f"{folder}/content.xml") if href else None

    def meta(self) -> dict[str, MetaValue]:
        """The properties of the document."""
        root = self.xml("meta.xml")
        values: dict[str, str | None] = {}
        keywords = []
        for node in root.iter() if root is not None else ():
            name = local(node)
            if name == "keyword":
                keywords.append(node.text or "")
            elif name in _FIRST and node.text:
                values.setdefault(_FIRST[name], node.text)
            elif name in _PROPERTIES and node.text:
                values[_PROPERTIES[name]] = node.text
        return metadata({**values, "keywords": ", ".join(keywords)})

    def _check_lock(self, kind: str) -> None:
        if "META-INF/manifest.xml" not in self._names:
            return
        try:
            manifest = self._archive.read("META-INF/manifest.xml")
        except _DAMAGE as error:
            raise RefusedError(_damaged("META-INF/manifest.xml", error)) from error
        if b"encryption-data" in manifest:
            reason = f"encrypted {kind} file: it opens with a password only; save an open copy"
            raise RefusedError(Unread("failed", reason))

    def _check_body(self, kind: str, body: str) -> None:
        """Refuse a file of another kind: named as what it is, it can be read."""
        try:
            mimetype = self._archive.read("mimetype") if "mimetype" in self._names else b""
        except _DAMAGE as error:
            raise RefusedError(_damaged("mimetype", error)) from error
        if (
            mimetype.startswith(b"application/vnd.oasis.opendocument.")
            and body.encode() not in mimetype
        ):
            found = mimetype.decode("ascii", "replace").strip()[:80]
            reason = f"not a {kind} file: it says that it is {found}; name it as what it is"
            raise RefusedError(Unread("failed", reason))


def _damaged(name: str, error: Exception) -> Unread:
    return Unread("failed", f"damaged: its part {name} cannot be unpacked: {error}"[:300])


@dataclass(slots=True)
class OdfInline:
    """A paragraph's text, and what is anchored in it."""

    parts: list[str] = field(default_factory=list)
    notes: list[tuple[str, Any]] = field(default_factory=list)
    """("Footnote 1", its body), ("Comment by Ann", its element)"""
    frames: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The paragraph's text."""
        return "".join(self.parts)


class OdfText:
    """Reads paragraphs one after the other, and counts their notes."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        """Names of styles that hide text."""
        self._counts = {"footnote": 0, "endnote": 0}

    def read(self, node: Any) -> OdfInline:
        """Return a paragraph's text."""
        inline = OdfInline()
        self._walk(node, inline)
        return inline

    def line(self, node: Any) -> str:
        """All paragraphs below an element, on one line, notes and frames included where they stand."""
        texts = []
        for paragraph in node.iter(f"{TEXT}p", f"{TEXT}h"):
            if not any(local(above) in ("p", "h") for above in paragraph.iterancestors()) or (
                node is not paragraph and _within(paragraph, node)
            ):
                texts.append(self.read(paragraph).text)
        return " ".join(" ".join(texts).split())

    def _walk(self, node: Any, inline: OdfInline) -> None:
        self._add(node.text, inline)
        for child in node:
            if isinstance(child.tag, str):
                self._child(child, inline)
            self._add(child.tail, inline)

    def _child(self, node: Any, inline: OdfInline) -> None:
        name = local(node)
        if name in _SKIPPED or node.get(f"{TEXT}style-name") in self.hidden:
            return
        if name == "s":
            count = node.get(f"{TEXT}c", "1")
            inline.parts.append(" " * min(int(count) if count.isdigit() else 1, 100))
        elif name == "tab":
            inline.parts.append("\t")
        elif name == "line-break":
            inline.parts.append("\n")
        elif name == "note":
            self._note(node, inline)
        elif name == "annotation":
            inline.notes.append((_comment(node), node))
        elif node.tag.startswith(DRAW):
            inline.frames.append(node)
        else:
            self._walk(node, inline)

    def _note(self, node: Any, inline: OdfInline) -> None:
        kind = node.get(f"{TEXT}note-class", "footnote")
        self._counts[kind] = self._counts.get(kind, 0) + 1
        body = node.find(f"{TEXT}note-body")
        if body is not None:
            inline.parts.append(f" ({kind} {self._counts[kind]})")
            inline.notes.append((f"{kind.capitalize()} {self._counts[kind]}", body))

    @staticmethod
    def _add(text: str | None, inline: OdfInline) -> None:
        if text:  # line ends in the file mean no more than a space
            inline.parts.append(re.sub(r"[ \t\r\n]+", " ", text))


def _within(paragraph: Any, node: Any) -> bool:
    """Is a paragraph the outermost one below an element?"""
    for above in paragraph.iterancestors():
        if above is node:
            return True
        if local(above) in ("p", "h"):
            return False
    return False


def _comment(node: Any) -> str:
    creator = next((child.text for child in node if local(child) == "creator"), None)
    author = " ".join((creator or "").split())
    return f"Comment by {author}" if author else "Comment"


def table_rows(node: Any, text: OdfText) -> Iterator[TableRow]:
    """Yield the rows of a table, each once however often it is repeated."""
    for child in node:
        name = local(child)
        if name == "table-header-rows":
            for row in table_rows(child, text):
                row.is_head = True
                yield row
        elif name in ("table-rows", "table-row-group"):
            yield from table_rows(child, text)
        elif name == "table-row":
            yield TableRow([cell for part in child for cell in _cells(part, text)])


def _cells(node: Any, text: OdfText) -> Iterator[TableCell]:
    name = local(node)
    if name == "table-cell":
        content = text.line(node)
        span = _count(node, "number-columns-spanned")
        # What it spans follows as covered cells: the span is theirs.
        yield TableCell(content)
        for _ in range(1, 1 if span > 1 else _count(node, "number-columns-repeated")):
            yield TableCell(content)
    elif name == "covered-table-cell":
        for _ in range(_count(node, "number-columns-repeated")):
            yield TableCell("")


def _count(node: Any, name: str) -> int:
    text = node.get(TABLE + name, "1")
    return min(int(text), MAX_SPAN) if text.isdigit() else 1
