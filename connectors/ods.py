"""OpenDocument sheets: a page per sheet, values as they are shown, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing, too_many_parts
from epicrag.connectors.draft import Draft
from epicrag.connectors.numbers import plain_number, shown
from epicrag.connectors.odf import OFFICE, TABLE, TEXT, OdfPackage, OdfText
from epicrag.connectors.sheets import Cell, Merge, Row, SheetWriter
from epicrag.connectors.xlsx import sheets_parsed
from epicrag.connectors.xmls import iterate_xml, local
from epicrag.types import Unread

MEDIA = "application/vnd.oasis.opendocument.spreadsheet"
_NUMBERS = frozenset(["float", "currency", "percentage", "date", "time"])
_MAX_REPEATS = 1_000
"""A row that holds something and is repeated more often than this is a fill, not data."""
_MAX_COLUMNS = 16_384
_DURATION = re.compile(r"PT(\d+)H(\d+)M(\d+)(?:[.,]\d+)?S")


@refusing
def parse_ods(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a workbook. Hidden rows, columns and sheets are read: a filter that was left on hides them."""
    package = OdfPackage(data, limits, "OpenDocument sheet", "spreadsheet")
    watch, draft = Watch(limits), Draft()
    captions: list[str] = []
    with package.open("content.xml") as file:
        for number, name, rows in _sheets(file, watch):
            if number > limits.max_pages:
                raise RefusedError(too_many_parts(number, limits.max_pages, "sheets"))
            draft.page, draft.part = number, f"sheet {name}"
            writer = SheetWriter(draft, watch, name)
            writer.write(rows)
            captions += writer.captions
    return sheets_parsed(draft, MEDIA, package.meta(), captions)


def _sheets(file: Any, watch: Watch) -> Iterator[tuple[int, str, Iterator[Row]]]:
    """Yield (number, name, rows) of each sheet; the rows are to be read before the next sheet."""
    walk = iterate_xml(file, "content.xml", (f"{TABLE}table-row", f"{TABLE}table"))
    number = 0
    for node in walk:
        above = _table_of(node)
        if above is None:
            continue
        number += 1
        name = above.get(f"{TABLE}name", "")
        merges: list[Merge] = []
        rows = _rows(node, walk, above, merges, watch)
        yield number, name, _merging(rows, merges)
        for _ in rows:
            pass


def _merging(rows: Iterator[Row], merges: list[Merge]) -> Iterator[Row]:
    """Spread merged cells: each row's merges are known when the row is read."""
    running: list[Merge] = []
    held: dict[int, Cell] = {}
    for row in rows:
        running = [merge for merge in running if merge.bottom >= row.number]
        new = [merge for merge in merges if merge.top == row.number]
        merges.clear()
        texts = {cell.column: cell for cell in row.cells}
        below = [held[merge.left] for merge in running if merge.left not in texts]
        for merge in new:
            if merge.left in texts and merge.bottom > merge.top:
                held[merge.left] = texts[merge.left]
                running.append(merge)
        cells = sorted([*row.cells, *below]) if row.cells else []
        yield Row(row.number, cells)


def _table_of(node: Any) -> Any:
    """The sheet that a row or sheet belongs to; None within charts, tables in cells, and the like."""
    above = node if node.tag == f"{TABLE}table" else node.getparent()
    while above is not None and above.tag != f"{TABLE}table":
        above = above.getparent()
    parent = above.getparent() if above is not None else None
    return above if parent is not None and parent.tag == f"{OFFICE}spreadsheet" else None


def _rows(
    first: Any, walk: Iterator[Any], sheet: Any, merges: list[Merge], watch: Watch
) -> Iterator[Row]:
    """Yield the rows of a sheet up to its end, and let go of each."""
    text = OdfText()
    number, size = 1, 0
    node = first
    while node is not None and node is not sheet:
        watch.check()
        repeats = _count(node, "number-rows-repeated", 1 << 21)
        cells = _cells(node, number, text, merges)
        for at in range(min(repeats, _MAX_REPEATS) if cells else 0):
            size += sum(len(cell.text) for cell in cells)
            watch.check(size)
            yield Row(number + at, cells)
        number += repeats
        node.clear()
        while node.getprevious() is not None and local(node.getprevious()) == "table-row":
            del node.getparent()[node.getparent().index(node) - 1]
        node = next(walk, None)
    if node is not None:
        node.clear()


def _cells(row: Any, number: int, text: OdfText, merges: list[Merge]) -> list[Cell]:
    cells: list[Cell] = []
    column = 0
    for node in row:
        if local(node) not in ("table-cell", "covered-table-cell"):
            continue
        repeats = _count(node, "number-columns-repeated", _MAX_COLUMNS)
        value = _value(node, text) if local(node) == "table-cell" else ""
        if value:
            wide = _count(node, "number-columns-spanned", _MAX_COLUMNS)
            high = _count(node, "number-rows-spanned", 1 << 20)
            if wide > 1 or high > 1:
                merges.append(Merge(number, column, number + high - 1, column + wide - 1))
            is_number = node.get(f"{OFFICE}value-type") in _NUMBERS
            for at in range(min(repeats, _MAX_REPEATS)):
                cells.append(Cell(column + at, value, is_number, wide))
        column += repeats
        if column > _MAX_COLUMNS:
            break
    return cells


def _value(node: Any, text: OdfText) -> str:
    """A cell's value: dates as ISO, numbers without grouping, all else as the sheet shows it."""
    kind = node.get(f"{OFFICE}value-type")
    if kind == "date":
        date = node.get(f"{OFFICE}date-value", "")
        return str(date.removesuffix("T00:00:00").replace("T", " "))
    if kind == "time" and (found := _DURATION.fullmatch(node.get(f"{OFFICE}time-value", ""))):
        return f"{int(found[1])}:{found[2]:0>2}" + (f":{found[3]}" if int(found[3]) else "")
    lines = [text.read(child).text for child in node if child.tag == f"{TEXT}p"]
    displayed = "\n".join(lines).strip()
    if kind in ("float", "percentage"):
        return _number(node.get(f"{OFFICE}value"), displayed, kind == "percentage")
    return displayed


def _number(value: str | None, displayed: str, percent: bool) -> str:
    """A number with as many digits behind the point as are shown."""
    try:
        number = float(value or "")
    except ValueError:
        return displayed
    if percent:
        found = re.search(r"[.,](\d+)\s*%", displayed)
        return shown(number, f"0.{'0' * min(len(found[1]), 12)}%" if found else "0%")
    found = re.search(r"[.,](\d{1,2}|\d{4,12})$", displayed)
    return shown(number, f"0.{'0' * len(found[1])}") if found else plain_number(number)


def _count(node: Any, name: str, most: int) -> int:
    text = node.get(TABLE + name, "1")
    return min(max(int(text), 1), most) if text.isdigit() and len(text) < 10 else 1
