"""AsciiDoc stays as it is written; headings, blocks and tables are where it may be cut."""

from __future__ import annotations

import pytest

from epicrag.connectors.asciidoc import parse_asciidoc
from epicrag.types import Document

SOURCE = """= Manual
Ann Lee <ann@example.org>
v1.2, 2024-05-01
:keywords: pumps, valves

Abstract.

== Setup

* first
* second

[source,sh]
----
make all

== no heading
----

=== Details

The end.
"""


def blocks(source: str) -> list[tuple[str, str]]:
    found = parse_asciidoc(source).blocks
    return [(block.kind, source[block.start : block.end]) for block in found]


def heading(source: str, word: str) -> str | None:
    document = Document("/a", source, "", anchors=parse_asciidoc(source).anchors)
    return document.place(source.index(word), source.index(word) + 1).heading


def test_text_is_the_source_and_blocks_follow_it():
    assert parse_asciidoc(SOURCE).text == SOURCE
    assert blocks(SOURCE) == [
        ("heading", "= Manual"),
        ("paragraph", "Ann Lee <ann@example.org>\nv1.2, 2024-05-01\n:keywords: pumps, valves"),
        ("paragraph", "Abstract."),
        ("heading", "== Setup"),
        ("paragraph", "* first"),
        ("paragraph", "* second"),
        ("code", "[source,sh]\n----\nmake all\n\n== no heading\n----"),
        ("heading", "=== Details"),
        ("paragraph", "The end."),
    ]


def test_headings_title_and_meta():
    assert heading(SOURCE, "The end") == "Manual > Setup > Details"
    parsed = parse_asciidoc(SOURCE)
    assert parsed.title == "Manual"
    assert parsed.meta == {
        "author": "Ann Lee",
        "date": "2024-05-01",
        "year": 2024,
        "tags": ("pumps", "valves"),
    }


def test_a_title_may_be_underlined():
    source = "Manual\n======\n\nPart\n----\n\ntext\n\n----\ncode\n----\n"
    assert heading(source, "text") == "Manual > Part"
    assert blocks(source)[-1] == ("code", "----\ncode\n----")


def test_a_table_has_its_first_row_as_head():
    source = "|===\n|Name |Count\n\n|a |1\n|b\n|2\n|===\n\nEnd\n"
    (table,) = parse_asciidoc(source).tables
    assert table.head == "|Name |Count"
    assert [text for kind, text in blocks(source) if kind == "row"] == [
        "|===\n|Name |Count",
        "|a |1",
        "|b\n|2\n|===",
    ]


def test_a_table_of_cells_on_lines_of_their_own_is_read_by_its_columns():
    source = '[cols="1,1", options="header"]\n|===\n|Name\n|Count\n|a\n|1\n|===\n'
    assert [table.head for table in parse_asciidoc(source).tables] == ["|Name\n|Count"]


@pytest.mark.parametrize("source", ["", "----", "|===", "|===\n|===", "=", "= ", "[source]\n----"])
def test_odd_ends_are_no_trouble(source: str):
    assert parse_asciidoc(source).text == source
