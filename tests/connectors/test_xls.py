"""Excel 97 files give what Excel files of today give."""

import datetime
import io
from typing import Any

import pytest

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.xls import parse_xls
from epicrag.types import Unread

xlwt = pytest.importorskip("xlwt")


def saved(book: Any) -> bytes:
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def test_values_formats_merges_and_sheets():
    book = xlwt.Workbook()
    sheet = book.add_sheet("Sales")
    sheet.write_merge(0, 0, 1, 2, "Share")
    for at, text in enumerate(["Day", "2022", "2023"]):
        sheet.write(1, at, text)
    sheet.write(2, 0, datetime.date(2023, 5, 1), xlwt.easyxf(num_format_str="D-MMM-YY"))
    sheet.write(2, 1, 0.125, xlwt.easyxf(num_format_str="0.0%"))
    sheet.write(2, 2, 3128.0)
    book.add_sheet("Sheet2").write(0, 0, "last")
    answer = parse_xls(saved(book), Limits())
    assert isinstance(answer, Parsed)
    assert answer.text == (
        "Sales\n\nDay | Share 2022 | Share 2023\n2023-05-01 | 12.5% | 3128\nlast"
    )
    assert [anchor.part for anchor in answer.anchors][-1] == "sheet Sheet2"
    assert answer.anchors[-1].heading is None


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_xls(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_workbook_says_so(make_ole):
    assert "not a Excel 97 file" in failure(b"plain").replace("an Excel", "a Excel")
    assert "Word 97 file" in failure(make_ole({("WordDocument",): b"x"}))
    assert "damaged" in failure(make_ole({("Workbook",): b"nonsense" * 100}))


def test_limits():
    book = xlwt.Workbook()
    for name in ("a", "b"):
        for at in range(50):
            book.add_sheet(name) if not at else None
            book.get_sheet(name).write(at, 0, f"some text {at}")
    assert "--max-pages" in failure(saved(book), Limits(max_pages=1))
    assert "--max-chars" in failure(saved(book), Limits(max_chars=50))
