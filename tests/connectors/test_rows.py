"""Rows of a table keep their values with their columns, wherever they are cut."""

from epicrag.connectors.draft import Draft
from epicrag.connectors.rows import RowWriter
from epicrag.connectors.split import split
from epicrag.types import Document


def document_of(draft: Draft) -> Document:
    return Document(
        "/d",
        draft.text(),
        "",
        anchors=draft.anchors(),
        blocks=tuple(draft.blocks),
        tables=draft.tables(),
    )


def test_a_narrow_table_is_bars_and_repeats_its_head(words):
    draft = Draft()
    with RowWriter(draft, ["Region", "Sales"], cell="B2", last="C2") as rows:
        for at in range(3, 40):
            rows.row(["North", str(at)], cell=f"B{at}", last=f"C{at}")
    assert draft.text().startswith("Region | Sales\nNorth | 3\nNorth | 4")
    chunks = split(document_of(draft), words, chunk_tokens=40)
    assert len(chunks) > 2
    assert all("Region | Sales" in chunk.model_text for chunk in chunks)
    assert chunks[0].place.cells is not None
    assert chunks[0].place.cells[0] == "B2"
    assert chunks[-1].place.cells is not None
    assert chunks[-1].place.cells[1] == "C39"


def test_values_of_a_wide_table_have_their_columns_names():
    draft = Draft()
    with RowWriter(draft, [f"h{at}" for at in range(12)], line=1) as rows:
        rows.row(["a", "", "b", *[""] * 9], line=2)
    assert draft.text().split("\n")[1] == "h0: a; h2: b"
    assert not draft.tables()
    assert [anchor.line for anchor in draft.anchors()] == [1, 2]


def test_values_of_a_long_row_have_their_columns_names():
    draft = Draft()
    with RowWriter(draft, ["name", "note", "year"]) as rows:
        rows.row(["Ann", "short", "1990"])
        rows.row(["Bob", "long " * 100, "1991"])
    short, long = draft.text().split("\n")[1:]
    assert short == "Ann | short | 1990"
    assert long.startswith("name: Bob; note: long")
    assert long.endswith("year: 1991")


def test_empty_rows_leave_no_trace_and_cells_are_one_line():
    draft = Draft()
    with RowWriter(draft, None) as rows:
        rows.row(["", ""], cell="A1")
        rows.row(["a\nb", "", "c", ""], cell="A2")
    assert draft.text() == "a b |  | c"
    assert not draft.tables()


def test_more_values_than_columns_are_kept():
    draft = Draft()
    with RowWriter(draft, ["name"] * 9) as rows:
        rows.row(["x"] * 8 + ["y", "z"])
    assert draft.text().endswith("name: y; z")
