"""What documents say of themselves has the same names and forms whatever the format."""

from __future__ import annotations

import datetime

import pytest

from epicrag.connectors.frontmatter import front_matter, front_matter_end
from epicrag.connectors.markdown import parse_markdown
from epicrag.connectors.meta import iso_date, meta_of


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2024-05-01", "2024-05-01"),
        ("2024-5-1T10:00:00Z", "2024-05-01"),
        ("<2024-05-01 Wed>", "2024-05-01"),
        ("2024-05", "2024-05"),
        ("2024", "2024"),
        ("1 May 2024", "2024-05-01"),
        ("May 1st, 2024", "2024-05-01"),
        ("1. Foo 2024", None),
        ("2024-13-01", None),
        ("20240501", "2024-05-01"),
        ("Wed, 01 May 2024 10:00:00 +0200", "2024-05-01"),
        ("soon", None),
        ("", None),
    ],
)
def test_dates_are_as_exact_as_they_were_written(text: str, iso: str | None):
    assert iso_date(text) == iso


def test_names_are_one_set_and_empty_values_are_left_out():
    found = meta_of(
        {
            "Authors": ["Ann", "Bo"],
            "Keywords": "a; b",
            "Lang": "en",
            "created": datetime.datetime(2024, 5, 1, 10),
            "draft": False,
            "Page Count": 3,
            "summary": " ",
            "nothing": None,
            "nested": {"a": 1},
        }
    )
    assert found == {
        "author": ("Ann", "Bo"),
        "tags": ("a", "b"),
        "language": "en",
        "date": "2024-05-01",
        "year": 2024,
        "draft": False,
        "page_count": 3,
    }


def test_front_matter_is_yaml_or_toml():
    yaml = "---\ntitle: 'A: b'\ntags: [x, y]\ndate: 2024-05-01\n---\ntext\n"
    assert parse_markdown(yaml).title == "A: b"
    assert parse_markdown(yaml).meta == {
        "title": "A: b",
        "tags": ("x", "y"),
        "date": "2024-05-01",
        "year": 2024,
    }
    toml = '+++\ntitle = "T"\n[author]\nname = "Ann"\n+++\n\ntext\n'
    assert parse_markdown(toml).meta == {"title": "T", "author": "Ann"}


@pytest.mark.parametrize(
    "source",
    [
        "---\n: : :\n\t- x\n---\n",
        "---\n- a\n- b\n---\n",
        "---\na: &a [1,1]\nb: [*a,*a]\n---\n",
        "+++\nno toml\n+++\n",
        "---\ndate: 2024-99-99\n---\n",
    ],
)
def test_front_matter_that_cannot_be_read_says_nothing(source: str):
    rows = source.splitlines()
    assert front_matter_end(rows) == len(rows)
    assert set(front_matter(rows)) <= {"date"}
    assert parse_markdown(source).text == source


def test_a_markdown_table_that_is_cut_repeats_its_head():
    source = "# T\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n"
    (table,) = parse_markdown(source).tables
    assert table.head == "| a | b |\n|---|---|"
    assert source[table.start : table.end].endswith("| 3 | 4 |")
