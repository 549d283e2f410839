"""Excel files: a page per sheet, values as they were last calculated, row by row and never all at once."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing, too_many_parts
from epicrag.connectors.draft import Draft
from epicrag.connectors.numbers import shown
from epicrag.connectors.ooxml import Package
from epicrag.connectors.properties import real_title
from epicrag.connectors.sheets import Cell, Merge, Row, SheetWriter, merged
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
    import openpyxl

    package = Package(data, limits, "Excel")
    if not package.related(package.main, "worksheet"):
        return Unread(
            "failed", "a ZIP archive of Office, but not an Excel file: name it as what it is"
        )
    file = package.for_library(data)
    try:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
    except (
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        zipfile.BadZipFile,
    ) as error:
        return Unread("failed", f"damaged Excel file: {type(error).__name__}: {error}"[:300])
    try:
        return _read(book, package, limits)
    finally:
        book.close()


def _read(book: Any, package: Package, limits: Limits) -> Parsed | Unread:
    sheets = book.worksheets
    if len(sheets) > limits.max_pages:
        raise RefusedError(too_many_parts(len(sheets), limits.max_pages, "sheets"))
    watch, draft = Watch(limits), Draft()
    captions: list[str] = []
    for number, sheet in enumerate(sheets, 1):
        if sheet.sheet_state == "veryHidden":
            continue
        draft.page, draft.part = number, f"sheet {sheet.title}"
        writer = SheetWriter(draft, watch, sheet.title)
        merges = _merges(package, sheet._worksheet_path)
        writer.write(merged(_rows(sheet, watch), merges))
        captions += writer.captions
    return sheets_parsed(draft, MEDIA, package.meta(), captions)


def sheets_parsed(
    draft: Draft, media: str, meta: dict[str, MetaValue], captions: list[str]
) -> Parsed:
    """What a workbook's reader returns: its title is that of its properties, or of its only sheet."""
    title = real_title(str(meta.pop("title", "")))
    if title is None and len(captions) == 1:
        title = captions[0]
    return Parsed(
        text=draft.text(),
        media=media,
        title=title,
        anchors=draft.anchors(),
        blocks=tuple(draft.blocks),
        tables=draft.tables(),
        meta={**meta, **({"title": title} if title else {})},
    )


def _rows(sheet: Any, watch: Watch) -> Iterator[Row]:
    """Yield the rows that hold something. What a sheet says of its own size is often wrong."""
    sheet.reset_dimensions()
    for cells in sheet.iter_rows():
        watch.check()
        found = []
        for cell in cells:
            value = cell.value
            if value is None or value == "":
                continue
            text = shown(value, cell.number_format)
            if text:
                found.append(Cell(cell.column - 1, text, not isinstance(value, str | bool)))
                row = cell.row
        if found:
            yield Row(row, found)


def _merges(package: Package, part: str) -> list[Merge]:
    """The merged cells of a sheet: they stand behind its rows, where reading by rows does not look."""
    name = part.lstrip("/")
    found: dict[bytes, Merge] = {}
    if not package.has(name):
        return []
    with package.open(name) as file:
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


def column_of(name: str) -> int:
    """The column of a name such as "AB", counted from 0."""
    column = 0
    for letter in name:
        column = column * 26 + ord(letter) - ord("A") + 1
    return column - 1
