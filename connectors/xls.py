"""Excel 97 files: as Excel files of today, read whole."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing, too_many_parts
from epicrag.connectors.draft import Draft
from epicrag.connectors.numbers import shown
from epicrag.connectors.ole import open_ole, summary
from epicrag.connectors.sheets import Cell, Merge, Row, SheetWriter, merged
from epicrag.connectors.xlsx import sheets_parsed
from epicrag.types import Unread

MEDIA = "application/vnd.ms-excel"
_VERY_HIDDEN = 2


@refusing
def parse_xls(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a workbook of Excel 5 to 2003."""
    import xlrd
    from xlrd.compdoc import CompDocError

    ole = open_ole(data, "Excel 97", ("Workbook", "Book"))
    try:
        book = xlrd.open_workbook(
            file_contents=data, formatting_info=True, logfile=io.StringIO(), on_demand=True
        )
    except (xlrd.XLRDError, CompDocError) as error:
        if "encrypted" in str(error).lower():
            reason = "encrypted Excel file: it opens with a password only; save an open copy"
            return Unread("failed", reason)
        return Unread("failed", f"damaged Excel 97 file: {error}"[:300])
    try:
        return _read(book, summary(ole), limits)
    finally:
        book.release_resources()


def _read(book: Any, meta: dict[str, Any], limits: Limits) -> Parsed:
    if book.nsheets > limits.max_pages:
        raise RefusedError(too_many_parts(book.nsheets, limits.max_pages, "sheets"))
    watch, draft = Watch(limits), Draft()
    captions: list[str] = []
    for at in range(book.nsheets):
        watch.check(draft.length)
        sheet = book.sheet_by_index(at)
        if sheet.visibility == _VERY_HIDDEN:
            continue
        draft.page, draft.part = at + 1, f"sheet {sheet.name}"
        writer = SheetWriter(draft, watch, sheet.name)
        merges = [
            Merge(top + 1, left, bottom, right - 1)
            for top, bottom, left, right in sheet.merged_cells
        ]
        writer.write(merged(_rows(book, sheet), merges))
        captions += writer.captions
        book.unload_sheet(at)
    return sheets_parsed(draft, MEDIA, meta, captions)


def _rows(book: Any, sheet: Any) -> Iterator[Row]:
    for number in range(sheet.nrows):
        cells = []
        for column, cell in enumerate(sheet.row(number)):
            text, is_number = _value(book, cell)
            if text:
                cells.append(Cell(column, text, is_number))
        if cells:
            yield Row(number + 1, cells)


def _value(book: Any, cell: Any) -> tuple[str, bool]:
    import xlrd

    if cell.ctype == xlrd.XL_CELL_TEXT:
        return str(cell.value).strip(), False
    if cell.ctype == xlrd.XL_CELL_NUMBER:
        return shown(cell.value, _format(book, cell)), True
    if cell.ctype == xlrd.XL_CELL_DATE:
        return _date(book, cell.value), True
    if cell.ctype == xlrd.XL_CELL_BOOLEAN:
        return shown(bool(cell.value)), False
    if cell.ctype == xlrd.XL_CELL_ERROR:
        return str(xlrd.error_text_from_code.get(cell.value, "#ERROR")), True
    return "", False


def _date(book: Any, value: float) -> str:
    import xlrd

    try:
        moment = xlrd.xldate_as_datetime(value, book.datemode)
    except (ValueError, OverflowError, xlrd.XLDateError):
        return shown(value)
    return shown(moment.time() if 0 <= value < 1 else moment)


def _format(book: Any, cell: Any) -> str:
    try:
        return str(book.format_map[book.xf_list[cell.xf_index].format_key].format_str)
    except (KeyError, IndexError, TypeError):
        return "General"
