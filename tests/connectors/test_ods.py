"""OpenDocument sheets give values as they are shown, and cells as they are named."""

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.ods import parse_ods
from epicrag.types import Document, Unread

_NAMESPACES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for name in ("office", "text", "table")
)


def made(make_zip, *sheets: tuple[str, str]) -> bytes:
    tables = "".join(
        f'<table:table table:name="{name}">{rows}</table:table>' for name, rows in sheets
    )
    content = f"<office:document-content {_NAMESPACES}><office:body><office:spreadsheet>{tables}"
    content += "</office:spreadsheet></office:body></office:document-content>"
    return make_zip(
        {"mimetype": "application/vnd.oasis.opendocument.spreadsheet", "content.xml": content}
    )


def cell(shown: str, kind: str = "string", value: str = "", more: str = "") -> str:
    name = {"date": "date-value", "time": "time-value"}.get(kind, "value")
    return (
        f'<table:table-cell office:value-type="{kind}" office:{name}="{value}" {more}>'
        f"<text:p>{shown}</text:p></table:table-cell>"
    )


def row(*cells: str, more: str = "") -> str:
    return f"<table:table-row {more}>{''.join(cells)}</table:table-row>"


def parsed(data: bytes) -> Parsed:
    answer = parse_ods(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def test_values_are_shown_without_grouping(make_zip):
    rows = row(
        cell("3,128", "float", "3128"),
        cell("12.50%", "percentage", "0.125"),
        cell("1 May", "date", "2023-05-01"),
        cell("9.30", "time", "PT09H30M00S"),
        cell("2.50", "float", "2.5"),
        cell("text"),
    )
    text = parsed(made(make_zip, ("Sheet1", rows))).text
    assert text == "3128 | 12.50% | 2023-05-01 | 9:30 | 2.50 | text"


def test_repeated_cells_and_rows_keep_their_names(make_zip):
    gap = '<table:table-cell table:number-columns-repeated="3"/>'
    rows = row(gap, more='table:number-rows-repeated="4"')
    rows += row(gap, cell("a"), cell("b"))
    rows += row(gap, cell("1", "float", "1", 'table:number-columns-repeated="2"'))
    rows += row(
        '<table:table-cell table:number-columns-repeated="16384"/>',
        more='table:number-rows-repeated="1048000"',
    )
    content = parsed(made(make_zip, ("One", rows), ("Two", row(cell("z"), cell("y")))))
    assert content.text == "One\n\na | b\n1 | 1\n\nTwo\n\nz | y"
    document = Document("/d", content.text, "", anchors=content.anchors)
    place = document.place(5, content.text.index("1 | 1") + 5)
    assert (place.page, place.part, place.cells) == (1, "sheet One", ("D5", "E6"))
    last = document.place(content.text.index("z | y"), len(content.text))
    assert (last.page, last.part, last.heading) == (2, "sheet Two", "Two")


def test_a_cell_merged_over_rows_is_said_in_each(make_zip):
    rows = row(cell("Zone"), cell("Town"), cell("Sales"))
    tall = 'table:number-rows-spanned="2"'
    rows += row(cell("North", more=tall), cell("A"), cell("1", "float", "1"))
    rows += row("<table:covered-table-cell/>", cell("B"), cell("2", "float", "2"))
    rows += row(cell("South"), cell("C"), cell("3", "float", "3"))
    text = parsed(made(make_zip, ("Sheet1", rows))).text
    assert text.split("\n")[1:] == ["North | A | 1", "North | B | 2", "South | C | 3"]


def test_a_bomb_of_repeats_is_no_data(make_zip):
    full = 'table:number-columns-repeated="16384"'
    rows = row(cell("x", more=full), more='table:number-rows-repeated="1048576"')
    answer = parse_ods(made(make_zip, ("Sheet1", rows)), Limits(max_chars=100_000))
    assert isinstance(answer, Unread)
    assert "--max-chars" in answer.reason


def test_limits(make_zip):
    data = made(make_zip, *[(f"s{at}", row(cell("x"))) for at in range(5)])
    answer = parse_ods(data, Limits(max_pages=3))
    assert isinstance(answer, Unread)
    assert "--max-pages" in answer.reason
