"""Excel files: a page per sheet, values as they were last calculated, row by row and never all at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing, too_many_parts
from epicrag.connectors.draft import Draft
from epicrag.connectors.ooxml import Package
from epicrag.connectors.properties import real_title
from epicrag.connectors.sheets import Cell, Merge, Row, SheetWriter, merged
from epicrag.connectors.workbook import SHEET, Book, Sheet
from epicrag.connectors.xmls import iterate_xml
from epicrag.types import Unread

if TYPE_CHECKING:
    from epicrag.types import MetaValue

MEDIA = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_MERGE = re.compile(
    rb"<(?:\w+:)?mergeCell [^>]*?ref=[\"']([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})"
)
_MAX_MERGES = 50_000
_PIECE = 1 << 20


@refusing
def parse_xlsx(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a workbook.

    Hidden rows and columns are read, for most are hidden by a filter that was left on; so are hidden
    sheets, which a menu shows. Sheets that only a macro can show are left out.
    """
    package = Package(data, limits, "Excel")
    watch, draft = Watch(limits), Draft()
    book = Book(package, watch)
    if not book.sheets:
        reason = "a ZIP archive of Office, but not an Excel file: name it as what it is"
        return Unread("failed", reason)
    if len(book.sheets) > limits.max_pages:
        raise RefusedError(too_many_parts(len(book.sheets), limits.max_pages, "sheets"))
    captions: list[str] = []
    for number, sheet in enumerate(book.sheets, 1):
        if sheet.state == "veryHidden" or not package.has(sheet.part):
            continue
        draft.page, draft.part = number, f"sheet {sheet.name}"
        writer = SheetWriter(draft, watch, sheet.name)
        writer.write(merged(_rows(package, book, sheet, watch), _merges(package, sheet.part)))
        captions += writer.captions
    return sheets_parsed(draft, MEDIA, package.meta(), captions)


def sheets_parsed(
    draft: Draft, media: str, meta: dict[str, MetaValue], captions: list[str]
) -> Parsed:
    """What a workbook's reader returns: its title is that of its properties, or of its only sheet."""
    title = real_title(str(meta.pop("title", "")))
    if title is None and len(captions) == 1:
        title = captions[0]
    return draft.parsed(
        media,
        title=title,
        meta={**meta, **({"title": title} if title else {})},
    )


def _rows(package: Package, book: Book, sheet: Sheet, watch: Watch) -> Iterator[Row]:
    """Yield the rows that hold something, and let go of each. What a sheet says of its size is often wrong."""
    number = size = 0
    with package.open(sheet.part) as file:
        for node in iterate_xml(file, sheet.part, (f"{SHEET}row",)):
            watch.check()
            given = node.get("r", "")
            number = int(given) if given.isdigit() else number + 1
            if cells := _cells(node, book):
                # A long text is stored once, and may be shown in many cells.
                size += sum(len(cell.text) for cell in cells)
                watch.check(size)
                yield Row(number, cells)
            node.clear()
            above = node.getparent()
            while above is not None and node.getprevious() is not None:
                del above[0]


def _cells(row: Any, book: Book) -> list[Cell]:
    found = []
    column = -1
    for node in row:
        name = node.get("r")
        column = column_of(name.rstrip("0123456789")) if name else column + 1
        if len(node):
            text, is_number = book.value(node)
            if text:
                found.append(Cell(column, text, is_number))
    return found


def _merges(package: Package, part: str) -> list[Merge]:
    """The merged cells of a sheet: they stand behind its rows, and are wanted before them."""
    found: dict[bytes, Merge] = {}
    with package.open(part) as file:
        before = b""
        while (piece := file.read(_PIECE)) and len(found) < _MAX_MERGES:
            text = before + piece
            if b"mergeCell " in text:
                found |= {match[0]: _merge(match) for match in _MERGE.finditer(text)}
            before = text[-200:]
    return list(found.values())


def _merge(match: re.Match[bytes]) -> Merge:
    left, top, right, bottom = (part.decode() for part in match.groups())
    return Merge(int(top), column_of(left), int(bottom), column_of(right))


@lru_cache(maxsize=20_000)
def column_of(name: str) -> int:
    """The column of a name such as "AB", counted from 0."""
    column = 0
    for letter in name:
        column = column * 26 + ord(letter) - ord("A") + 1
    return column - 1
