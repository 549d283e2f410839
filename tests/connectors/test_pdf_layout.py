"""Rows of a table stay together, lists side by side stay apart, and prose is left as it is."""

from __future__ import annotations

from collections.abc import Sequence

from epicrag.connectors.pdf_chars import may_be_tabular
from epicrag.connectors.pdf_layout import HEAD, ROW, Piece, arranged


def piece(text: str, left: float, line: float, width: float | None = None) -> Piece:
    """A piece on a line of 12 points, 8 points high, 5 points a letter."""
    return Piece(text, left, 12 * line, left + (width or 5 * len(text)), 12 * line + 8)


def lines(pieces: Sequence[Piece]) -> list[str]:
    text = arranged(pieces)
    assert text is not None
    return text.replace(ROW, "ROW ").replace(HEAD, "HEAD ").split("\n")


def grid(*rows: Sequence[str], first: int = 0) -> list[Piece]:
    return [
        piece(cell, 50 + 120 * column, first + at)
        for at, row in enumerate(rows)
        for column, cell in enumerate(row)
    ]


def test_a_table_read_down_its_columns_becomes_rows():
    rows = grid(("Name", "Total"), ("Ann", "12"), ("Bo", "7,5"), ("Cy", "-3"))
    by_column = [*rows[1::2], *rows[0::2]]
    assert lines(by_column) == ["HEAD Name | Total", "ROW Ann | 12", "ROW Bo | 7,5", "ROW Cy | -3"]


def test_a_cell_between_two_rows_belongs_to_the_upper_one():
    pieces = grid(("", "a", "1", "2"), ("", "b", "3", "4"), ("", "c", "5", "6"))
    pieces = [one for one in pieces if one.text]
    both = Piece("both", 50, 7, 75, 13)
    assert lines([*pieces, both])[0] == "ROW both | a | 1 | 2"


def test_a_line_of_words_right_above_is_the_head():
    above = piece("Name and Total of everything", 50, 0, 200)
    pieces = [above, *grid(("Ann", "12"), ("Bo", "7"), ("Cy", "3"), first=1)]
    assert lines(pieces)[0] == "HEAD Name and Total of everything"
    sentence = piece("The table shows how many there are.", 50, 0, 200)
    assert lines([sentence, *pieces[1:]])[0] == "The table shows how many there are."


def test_names_and_values_of_a_form_are_rows():
    pieces = grid(
        ("Factory", "Delta Works"), ("Country", "China"), ("Workers", "243"), ("PC", "none")
    )
    assert lines(pieces)[2] == "ROW Workers | 243"


def test_rows_of_right_to_left_cells_are_read_from_the_right():
    pieces = grid(("5", "שלום"), ("6", "ספר"), ("7", "מים"))
    assert lines(pieces)[0] == "ROW שלום | 5"


def test_lists_side_by_side_are_read_one_after_the_other():
    pieces = [
        one
        for at, (left, right) in enumerate([("one", "six"), ("two", "seven"), ("three", "eight")])
        for one in (
            piece("•", 50, at),
            piece(left, 60, at),
            piece("•", 250, at),
            piece(right, 260, at),
        )
    ]
    assert lines(pieces) == ["• one", "• two", "• three", "• six", "• seven", "• eight"]


def test_prose_in_two_columns_is_left_to_pdfium():
    left = "of the words that stand here on the left"
    pieces = [piece(f"{n} {left}", 50 + 300 * side, n) for side in (0, 1) for n in range(8)]
    assert arranged(pieces) is None


def test_only_pages_that_look_like_tables_are_looked_at_closely():
    prose = "The words of a page go on and on, line after line, as they do in books.\n" * 40
    assert not may_be_tabular(prose)
    assert may_be_tabular("Alaska 209 3,062 3,209\n" * 6)
    assert may_be_tabular("\x1f one \x1f two\n" * 3)
    assert may_be_tabular("Name\n12\nOther\n13\nThird\n14\n")
