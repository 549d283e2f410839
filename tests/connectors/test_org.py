"""Org mode stays as it is written; headings, blocks and tables are where it may be cut."""

from __future__ import annotations

import pytest

from epicrag.connectors.org import parse_org
from epicrag.types import Document

SOURCE = """#+TITLE: Notes
#+AUTHOR: Ann Lee
#+DATE: <2024-05-01 Wed>
#+FILETAGS: :work:pumps:

* TODO [#A] First thing :urgent:
:PROPERTIES:
:ID: 7
:END:
Words.
- item
  goes on
- other

#+NAME: run
#+BEGIN_SRC sh
make all

make test
#+END_SRC
"""


def blocks(source: str) -> list[tuple[str, str]]:
    return [(block.kind, source[block.start : block.end]) for block in parse_org(source).blocks]


def heading(source: str, word: str) -> str | None:
    document = Document("/a", source, "", anchors=parse_org(source).anchors)
    return document.place(source.index(word), source.index(word) + 1).heading


def test_text_headings_title_and_meta():
    parsed = parse_org(SOURCE)
    assert parsed.text == SOURCE and parsed.title == "Notes"
    assert heading(SOURCE, "Words") == "First thing"
    assert parsed.meta == {
        "title": "Notes",
        "author": "Ann Lee",
        "date": "2024-05-01",
        "year": 2024,
        "tags": ("work", "pumps"),
    }


def test_blocks_follow_the_structure():
    assert blocks(SOURCE)[1:] == [
        ("heading", "* TODO [#A] First thing :urgent:"),
        ("code", ":PROPERTIES:\n:ID: 7\n:END:"),
        ("paragraph", "Words."),
        ("paragraph", "- item\n  goes on"),
        ("paragraph", "- other"),
        ("code", "#+NAME: run\n#+BEGIN_SRC sh\nmake all\n\nmake test\n#+END_SRC"),
    ]


def test_a_table_has_what_stands_above_its_rule_as_head():
    source = "| Name | Count |\n|------+-------|\n| a    | 1     |\n| b    | 2     |\n\nEnd\n"
    (table,) = parse_org(source).tables
    assert table.head == "| Name | Count |\n|------+-------|"
    assert [kind for kind, _ in blocks(source)] == ["row", "row", "row", "paragraph"]


def test_properties_above_all_headings_are_the_documents():
    source = ":PROPERTIES:\n:Project: Delta\n:END:\n\n* One\n"
    assert parse_org(source).meta == {"project": "Delta"}
    assert parse_org(source).title == "One"


@pytest.mark.parametrize(
    "source", ["", "*", "* ", "#+BEGIN_SRC", "|", "|-", ":END:", ":A:", "-----"]
)
def test_odd_ends_are_no_trouble(source: str):
    assert parse_org(source).text == source
