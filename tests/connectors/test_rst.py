"""reStructuredText stays as it is written; what its conventions mean is where it may be cut."""

from __future__ import annotations

import pytest

from epicrag.connectors.rst import parse_rst
from epicrag.types import Document

SOURCE = """=====
Guide
=====

:Author: Ann Lee
:Date: 2024-05-01

Preface::

    literal

    still literal

First part
----------

Words.

- item one
- item two

.. code-block:: python

    x = 1

    y = 2

Deeper
~~~~~~

.. note::

    A note.

----

Second part
-----------

The end.
"""


def document_of(source: str) -> Document:
    parsed = parse_rst(source)
    return Document(
        "/a", source, "", anchors=parsed.anchors, blocks=parsed.blocks, tables=parsed.tables
    )


def blocks(source: str) -> list[tuple[str, str]]:
    return [(block.kind, source[block.start : block.end]) for block in parse_rst(source).blocks]


def heading(source: str, word: str) -> str | None:
    start = source.index(word)
    return document_of(source).place(start, start + 1).heading


def test_text_is_the_source_exactly():
    assert parse_rst(SOURCE).text == SOURCE


def test_blocks_follow_the_structure():
    assert blocks(SOURCE) == [
        ("heading", "=====\nGuide\n====="),
        ("paragraph", ":Author: Ann Lee\n:Date: 2024-05-01"),
        ("paragraph", "Preface::"),
        ("code", "    literal\n\n    still literal"),
        ("heading", "First part\n----------"),
        ("paragraph", "Words."),
        ("paragraph", "- item one"),
        ("paragraph", "- item two"),
        ("code", ".. code-block:: python\n\n    x = 1\n\n    y = 2"),
        ("heading", "Deeper\n~~~~~~"),
        ("paragraph", ".. note::"),
        ("paragraph", "    A note."),
        ("break", "----"),
        ("heading", "Second part\n-----------"),
        ("paragraph", "The end."),
    ]


def test_headings_nest_in_the_order_of_their_underlines():
    assert heading(SOURCE, "Preface") == "Guide"
    assert heading(SOURCE, "A note") == "Guide > First part > Deeper"
    assert heading(SOURCE, "The end") == "Guide > Second part"
    assert parse_rst(SOURCE).title == "Guide"


def test_a_line_above_makes_another_level_than_the_same_line_below():
    source = "Top\n===\n\n===\nSub\n===\n\ntext\n"
    assert heading(source, "text") == "Top > Sub"


def test_what_the_document_says_of_itself_is_meta():
    meta = parse_rst(SOURCE).meta
    assert meta == {"author": "Ann Lee", "date": "2024-05-01", "year": 2024}


def test_what_a_directive_defines_is_a_heading_over_its_description():
    source = (
        "Top\n===\n\n.. py:data:: LIFETIME\n\n    How long.\n\n    Default: ``31``\n\n"
        ".. py:data:: OTHER\n    :type: int\n\n    Else.\n\nAfter.\n"
    )
    assert heading(source, "Default") == "Top > LIFETIME"
    assert heading(source, ":type") == "Top > OTHER"
    assert heading(source, "Else") == "Top > OTHER"
    assert heading(source, "After") == "Top"
    assert ("heading", ".. py:data:: OTHER\n    :type: int") in blocks(source)


def test_definitions_nest_by_indentation():
    source = ".. class:: A\n\n   About A.\n\n   .. method:: b()\n\n      About b.\n\n   More A.\n"
    assert heading(source, "About b") == "A > b()"
    assert heading(source, "More A") == "A"


def test_a_grid_table_has_its_head():
    source = (
        "+------+-------+\n| Name | Count |\n+======+=======+\n| a    | 1     |\n"
        "|      | more  |\n+------+-------+\n| b    | 2     |\n+------+-------+\n\nEnd\n"
    )
    (table,) = parse_rst(source).tables
    assert table.head == "+------+-------+\n| Name | Count |\n+======+=======+"
    assert [kind for kind, _ in blocks(source)] == ["row", "row", "row", "paragraph"]
    assert blocks(source)[1][1] == "| a    | 1     |\n|      | more  |"


def test_a_simple_table_has_its_head():
    source = (
        "=====  =====\nName   Count\n=====  =====\na      1\nb      2\n       3\n=====  =====\n"
    )
    (table,) = parse_rst(source).tables
    assert table.head == "=====  =====\nName   Count\n=====  ====="
    rows = [text for kind, text in blocks(source) if kind == "row"]
    assert rows[1:] == ["a      1", "b      2\n       3\n=====  ====="]


def test_list_and_csv_tables_have_their_heads():
    listed = (
        ".. list-table:: T\n   :header-rows: 1\n\n   * - Name\n     - Count\n   * - a\n     - 1\n"
    )
    assert [table.head for table in parse_rst(listed).tables] == ["Name | Count"]
    comma = ".. csv-table:: T\n   :header: Name, Count\n\n   a, 1\n   b, 2\n"
    assert [table.head for table in parse_rst(comma).tables] == ["Name, Count"]


def test_a_title_of_wide_letters_may_have_a_line_of_its_width():
    assert parse_rst("日本語\n======\n\ntext\n").title == "日本語"


@pytest.mark.parametrize(
    "source",
    ["", "::", "..", "====", "+--", "=== ===", ".. py:data::", "a\n==", ".. list-table::\n"],
)
def test_odd_ends_are_no_trouble(source: str):
    assert parse_rst(source).text == source
