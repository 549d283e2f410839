"""Excel files give their values as they were last shown."""

import datetime
import io

import openpyxl
import pytest

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.xlsx import column_of, parse_xlsx
from epicrag.types import Document, Unread


def saved(book: openpyxl.Workbook) -> bytes:
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def parsed(data: bytes) -> Parsed:
    answer = parse_xlsx(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_xlsx(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_values_are_shown_as_in_the_sheet():
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Day", "Share", "Sum", "Sure", "Time"])
    sheet.append([datetime.date(2023, 5, 1), 0.125, 3128.0, True, datetime.time(9, 30)])
    sheet["B2"].number_format = "0.0%"
    sheet["C2"].number_format = "#,##0"
    assert parsed(saved(book)).text == (
        "Day | Share | Sum | Sure | Time\n2023-05-01 | 12.5% | 3128 | TRUE | 09:30"
    )


def test_the_epoch_of_1904_is_known():
    book = openpyxl.Workbook()
    book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
    book.active.append([datetime.date(2023, 5, 1), "x"])
    assert parsed(saved(book)).text == "2023-05-01 | x"


def test_sheets_are_pages_with_names_and_cells():
    book = openpyxl.Workbook()
    book.active.title = "Sales"
    book.active["B4"], book.active["F4"], book.active["B5"], book.active["F5"] = "a", "b", 1, 2
    book.create_sheet("Costs").append(["c", 3])
    content = parsed(saved(book))
    document = Document("/d", content.text, "", anchors=content.anchors)
    place = document.place(0, content.text.index("2") + 1)
    assert (place.page, place.part, place.cells) == (1, "sheet Sales", ("B4", "F5"))
    place = document.place(content.text.index("c | 3"), len(content.text))
    assert (place.page, place.part, place.cells) == (2, "sheet Costs", ("A1", "B1"))


def test_hidden_rows_and_sheets_are_read_but_not_those_of_macros():
    book = openpyxl.Workbook()
    book.active.append(["shown", 1])
    book.active.append(["filtered", 2])
    book.active.row_dimensions[2].hidden = True
    for state in ("hidden", "veryHidden"):
        sheet = book.create_sheet(f"Of {state}")
        sheet.append([f"in {state}", 1])
        sheet.sheet_state = state
    text = parsed(saved(book)).text
    assert "filtered" in text
    assert "in hidden" in text
    assert "in veryHidden" not in text


def test_merged_cells_are_known_before_the_rows():
    book = openpyxl.Workbook()
    sheet = book.active
    for line in (["Zone", "Sales", None], [None, "2022", "2023"], ["North", 1, 2]):
        sheet.append(line)
    sheet.merge_cells("B1:C1")
    assert parsed(saved(book)).tables[0].head == "Zone | Sales 2022 | Sales 2023"


def test_formulas_give_what_was_calculated_last(make_zip):
    cells = (
        '<row r="2"><c r="A2"><f>SUM(B:B)</f><v>42</v></c><c r="B2" t="str"><f>x</f><v>ok</v></c>'
    )
    cells += '<c t="inlineStr"><is><t>in</t></is></c><c r="E2" t="e"><v>#N/A</v></c><c r="F2" s="9"/></row>'
    assert parsed(workbook(make_zip, cells)).text == "42 | ok | in | #N/A"


def test_readings_of_japanese_words_are_left_out(make_zip):
    shared = "<si><r><t>東</t></r><r><t>京</t></r><rPh><t>トウキョウ</t></rPh></si>"
    cells = '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>9</v></c></row>'
    assert parsed(workbook(make_zip, cells, shared)).text == "東京"


_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def workbook(make_zip, rows: str, shared: str = "", prolog: str = "", main: str = _MAIN) -> bytes:
    def relations(**targets: str) -> str:
        found = "".join(
            f'<Relationship Id="{kind}" Type="{_REL}/{kind}" Target="{target}"/>'
            for kind, target in targets.items()
        )
        return f'<Relationships xmlns="x">{found}</Relationships>'

    return make_zip(
        {
            "_rels/.rels": relations(officeDocument="xl/workbook.xml"),
            "xl/_rels/workbook.xml.rels": relations(worksheet="s.xml", sharedStrings="t.xml"),
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{_REL}"><sheets>'
            '<sheet name="Sheet1" sheetId="1" r:id="worksheet"/></sheets></workbook>',
            "xl/s.xml": f'{prolog}<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>',
            "xl/t.xml": f'<sst xmlns="{main}">{shared}</sst>',
        }
    )


def test_strict_workbooks_are_read(make_zip):
    cells = "<row><c><v>42</v></c></row>"
    strict = "http://purl.oclc.org/ooxml/spreadsheetml/main"
    assert parsed(workbook(make_zip, cells, main=strict)).text == "42"


def test_an_empty_workbook_has_no_text():
    assert parsed(saved(openpyxl.Workbook())).text == ""


def test_what_is_no_workbook_says_so(make_zip, make_ole):
    assert "no Excel file" in failure(make_zip({"a": "x"}))
    assert "cut off" in failure(saved(openpyxl.Workbook())[:500])
    assert "encrypted" in failure(make_ole({("EncryptedPackage",): b"x"}))
    bomb = '<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;">]>'
    assert "entities" in failure(workbook(make_zip, "<row><c><v>&b;</v></c></row>", prolog=bomb))
    assert "not well-formed" in failure(workbook(make_zip, "<row><c>"))


def test_limits():
    book = openpyxl.Workbook()
    for at in range(100):
        book.active.append([f"some text {at}", at])
    book.create_sheet("b")
    data = saved(book)
    assert "--max-chars" in failure(data, Limits(max_chars=200))
    assert "--max-pages" in failure(data, Limits(max_pages=1))
    assert "--max-file-seconds" in failure(data, Limits(max_file_seconds=-1))


@pytest.mark.parametrize(("name", "column"), [("A", 0), ("Z", 25), ("AA", 26), ("XFD", 16_383)])
def test_columns(name: str, column: int):
    assert column_of(name) == column


def test_a_text_stored_once_and_shown_often_is_counted_each_time(make_zip):
    cells = '<c t="s"><v>0</v></c>' * 1_000
    data = workbook(make_zip, f"<row>{cells}</row>", f"<si><t>{'long ' * 2_000}</t></si>")
    assert "--max-chars" in failure(data, Limits(max_chars=1_000_000))
