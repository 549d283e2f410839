"""A sheet is read as tables with their heads, and cited by its cells."""

from collections.abc import Iterator

from epicrag.connectors.base import Limits, Watch
from epicrag.connectors.draft import Draft
from epicrag.connectors.sheets import Cell, Merge, Row, SheetWriter, letters, merged
from epicrag.connectors.split import split
from epicrag.types import Document

Value = str | int | None


def rows_of(*lines: list[Value]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        cells = [
            Cell(at, str(value), isinstance(value, int))
            for at, value in enumerate(line)
            if value is not None
        ]
        if cells:
            yield Row(number, cells)


def written(*lines: list[Value], name: str = "Sheet1", merges: tuple[Merge, ...] = ()) -> Draft:
    draft = Draft()
    SheetWriter(draft, Watch(Limits()), name).write(merged(rows_of(*lines), merges))
    return draft


def test_columns_are_named_as_in_a_sheet():
    assert [letters(at) for at in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]


def test_captions_are_headings_above_their_table():
    draft = written([None, "Ducks"], [], [None, "Year", "Count"], [None, 2021, 150], name="Pond")
    assert draft.text() == "Pond\n\nDucks\n\nYear | Count\n2021 | 150"
    assert draft.anchors()[-1].heading == "Pond > Ducks"
    assert draft.tables()[0].head == "Year | Count"


def test_a_name_that_the_program_gave_is_none():
    assert written(["a", "b"], [1, 2], name="Tabelle1").text() == "a | b\n1 | 2"


def test_a_head_may_stand_apart_and_in_two_rows():
    draft = written(
        ["In millions", None, "January 2023"],
        [None, "Sales", "Profit", "Tax", "Net"],
        [],
        ["Zone", 1, 2, 3, 4],
        ["Total", 5, 6, 7, 8],
    )
    assert draft.text().split("\n")[:3] == [
        "In millions | January 2023",
        "| Sales | Profit | Tax | Net",
        "Zone | 1 | 2 | 3 | 4",
    ]
    assert draft.tables()[0].head == "In millions | January 2023\n| Sales | Profit | Tax | Net"


def test_a_name_over_several_columns_is_that_of_each():
    draft = written(
        ["Region", "2022", None, "2023", None],
        [None, "Sales", "Tax", "Sales", "Tax"],
        ["North", 1, 2, 3, 4],
        merges=(Merge(1, 1, 1, 2), Merge(1, 3, 1, 4)),
    )
    assert draft.tables()[0].head == "Region | 2022 Sales | 2022 Tax | 2023 Sales | 2023 Tax"


def test_a_cell_merged_over_rows_is_said_in_each():
    draft = written(
        ["Zone", "Town", "Sales"],
        ["North", "A", 1],
        [None, "B", 2],
        ["South", "C", 3],
        merges=(Merge(2, 0, 3, 0),),
    )
    assert draft.text().split("\n")[1:] == ["North | A | 1", "North | B | 2", "South | C | 3"]


def test_empty_rows_and_columns_are_left_out_and_part_tables():
    draft = written(
        [None] * 4,
        [None, "a", None, "b"],
        [None, 1, None, 2],
        [],
        [],
        [None, "c", None, "d"],
        [None, 3, None, 4],
    )
    assert draft.text() == "a | b\n1 | 2\n\nc | d\n3 | 4"
    assert [table.head for table in draft.tables()] == ["a | b", "c | d"]


def test_numbers_alone_have_no_head():
    assert not written([1, 2], [3, 4]).tables()


def test_a_table_of_text_has_the_head_it_shows():
    draft = written(["Name", "Town"], ["Ann", "Rome"], ["Bob", "Oslo"])
    assert draft.tables()[0].head == "Name | Town"


def test_passages_are_cited_by_first_and_last_cell(words):
    lines: list[list[Value]] = [["Item", "Price"]]
    lines += [[f"item {at}", at] for at in range(2, 700)]
    draft = written(*lines)
    document = Document(
        "/d",
        draft.text(),
        "",
        anchors=draft.anchors(),
        blocks=tuple(draft.blocks),
        tables=draft.tables(),
    )
    chunks = split(document, words, chunk_tokens=60)
    reached = 0
    for chunk in chunks:
        assert chunk.place.cells is not None
        first, last = chunk.place.cells
        assert (first[0], last[0]) == ("A", "B")
        assert int(first[1:]) == reached + 1
        reached = int(last[1:])
        assert "Item | Price" in chunk.model_text
        assert f"item {reached} | {reached}" in chunk.text
    assert reached == 699


def test_a_column_filled_late_is_not_lost():
    lines: list[list[Value]] = [["a", "b"], *[[at, at] for at in range(400)], [1, 2, 3]]
    assert written(*lines).text().endswith("1 | 2 | 3")


def test_cells_of_a_passage_are_the_range_that_holds_them_all():
    draft = written(
        ["x", "y", "z", "v"], *[["a", 2, None, 4] if at % 2 else [None, 2, 3] for at in range(20)]
    )
    document = Document("/d", draft.text(), "", anchors=draft.anchors())
    lines = draft.text().split("\n")
    start = len("\n".join(lines[:3])) + 1
    assert document.place(start, start + len(lines[3])).cells == ("B4", "D4")
    assert document.place(start, start + len(lines[3]) + 3).cells == ("A4", "D5")
    assert document.place(start, start + 1).cells == ("B4", "D4")
