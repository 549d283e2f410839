"""What the sheets of an Excel file share: their names, texts and formats, and the epoch of their dates."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from epicrag.connectors.numbers import plain_number, shown
from epicrag.connectors.xmls import iterate_xml, local

if TYPE_CHECKING:
    from epicrag.connectors.base import Watch
    from epicrag.connectors.ooxml import Package

SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_VALUE = f"{SHEET}v"
_MAX_DATE = 2_958_466
"""The day after 9999-12-31, counted from 1900."""


class Sheet(NamedTuple):
    """A sheet, and the part of the package that holds it."""

    name: str
    state: str
    """visible, hidden, or veryHidden"""
    part: str


class Book:
    """A workbook without its sheets' content."""

    def __init__(self, package: Package, watch: Watch) -> None:
        root = package.xml(package.main)
        relations = package.relations_by_id(package.main)
        self.sheets: list[Sheet] = []
        for node in root.iter(f"{SHEET}sheet"):
            relation = relations.get(node.get(f"{_R}id", ""))
            if relation is not None and relation.kind == "worksheet":
                name = " ".join(node.get("name", "").split())
                self.sheets.append(Sheet(name, node.get("state", "visible"), relation.target))
        self._from_1904 = any(
            node.get("date1904") in ("1", "true") for node in root.iter(f"{SHEET}workbookPr")
        )
        self._texts: list[str] = []
        for part in package.related(package.main, "sharedStrings"):
            self._read_texts(package, part, watch)
        self._formats: list[tuple[str, bool]] = []
        for part in package.related(package.main, "styles"):
            self._formats = _formats(package.xml(part))

    def value(self, node: Any) -> tuple[str, bool]:
        """A cell as text, and whether it is a number, a date or a fault: no name of a column."""
        kind = node.get("t", "n")
        if kind == "inlineStr":
            return _plain(node), False
        text = node.findtext(_VALUE) or ""
        if kind == "s":
            at = int(text) if text.isdigit() else -1
            return (self._texts[at] if 0 <= at < len(self._texts) else ""), False
        if kind == "b":
            return ("TRUE" if text == "1" else "FALSE" if text else ""), False
        if kind == "d":
            return text.removesuffix("T00:00:00").replace("T", " "), True
        if kind != "n" or not text:
            return text.strip(), kind == "e"
        return self._number(text, node.get("s")), True

    def _number(self, text: str, style: str | None) -> str:
        try:
            value = float(text)
        except ValueError:
            return text
        at = int(style) if style and style.isdigit() else 0
        form, is_date = self._formats[at] if at < len(self._formats) else ("General", False)
        if is_date and 0 <= value < _MAX_DATE:
            return _date(value, form, self._from_1904)
        return plain_number(value) if form == "General" else shown(value, form)

    def _read_texts(self, package: Package, part: str, watch: Watch) -> None:
        size = 0
        with package.open(part) as file:
            for node in iterate_xml(file, part, (f"{SHEET}si",)):
                self._texts.append(_plain(node))
                size += len(self._texts[-1])
                watch.check(size)
                node.clear()
                above = node.getparent()
                while above is not None and node.getprevious() is not None:
                    del above[0]


def _plain(node: Any) -> str:
    """The text of a shared or inline string, without the readings above Japanese words."""
    parts = [
        child.text or "" for child in node.iter(f"{SHEET}t") if local(child.getparent()) != "rPh"
    ]
    return "".join(parts).replace("_x000D_", "").strip()


def _date(value: float, form: str, from_1904: bool) -> str:
    from openpyxl.styles.numbers import is_timedelta_format
    from openpyxl.utils.datetime import CALENDAR_MAC_1904, CALENDAR_WINDOWS_1900, from_excel

    epoch = CALENDAR_MAC_1904 if from_1904 else CALENDAR_WINDOWS_1900
    try:
        if is_timedelta_format(form):
            return shown(datetime.timedelta(days=value))
        return shown(from_excel(value, epoch))
    except (ValueError, OverflowError):
        return shown(value)


def _formats(root: Any) -> list[tuple[str, bool]]:
    """The number format of each style of a cell, and whether it is that of a date."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format

    own = {
        node.get("numFmtId", ""): node.get("formatCode", "") for node in root.iter(f"{SHEET}numFmt")
    }
    found = []
    styles = root.find(f"{SHEET}cellXfs")
    for node in styles if styles is not None else ():
        number = node.get("numFmtId", "0")
        form = own.get(number) or BUILTIN_FORMATS.get(int(number) if number.isdigit() else 0)
        form = form or "General"
        found.append((form, bool(is_date_format(form))))
    return found
