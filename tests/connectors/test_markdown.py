"""Markdown stays as it is written; headings, code, tables and items are where it may be cut."""

from epicrag.connectors.markdown import parse_markdown
from epicrag.types import Document

SOURCE = """Preface.

# The *Book*  #

Words.
More words.

Part one
--------

- item
  goes on
- item two

```python
# not a heading

x = 1
```

### Deep

| a | b |
|---|:-:|
| 1 | 2 |
| 3 | 4 |
after

---

#no heading
"""


def blocks(source: str) -> list[tuple[str, str]]:
    parsed = parse_markdown(source)
    return [(block.kind, source[block.start : block.end]) for block in parsed.blocks]


def headings(source: str, *words: str) -> list[str | None]:
    document = Document("/a.md", source, "", anchors=parse_markdown(source).anchors)
    return [document.place(source.index(word), source.index(word) + 1).heading for word in words]


def test_text_is_the_source_exactly():
    assert parse_markdown(SOURCE).text == SOURCE


def test_blocks_follow_the_structure():
    assert blocks(SOURCE) == [
        ("paragraph", "Preface."),
        ("heading", "# The *Book*  #"),
        ("paragraph", "Words.\nMore words."),
        ("heading", "Part one\n--------"),
        ("paragraph", "- item\n  goes on"),
        ("paragraph", "- item two"),
        ("code", "```python\n# not a heading\n\nx = 1\n```"),
        ("heading", "### Deep"),
        ("row", "| a | b |\n|---|:-:|"),
        ("row", "| 1 | 2 |"),
        ("row", "| 3 | 4 |"),
        ("paragraph", "after"),
        ("break", "---"),
        ("paragraph", "#no heading"),
    ]


def test_headings_are_in_force_from_their_own_line_on():
    assert headings(
        SOURCE, "Preface", "# The", "Words", "Part", "item two", "### Deep", "after"
    ) == [
        None,
        "The *Book*",
        "The *Book*",
        "The *Book* > Part one",
        "The *Book* > Part one",
        "The *Book* > Part one > Deep",
        "The *Book* > Part one > Deep",
    ]


def test_title_is_the_first_heading_of_level_one():
    assert parse_markdown(SOURCE).title == "The *Book*"
    assert parse_markdown("## Two\n").title is None
    assert parse_markdown('---\ntitle: "From above"\n---\n## Two\n').title == "From above"
    assert parse_markdown("---\ntitle: x\n---\n# One\n").title == "One"


def test_a_rule_at_the_top_is_no_front_matter():
    assert blocks("---\n\ntext\n") == [("break", "---"), ("paragraph", "text")]


def test_code_without_an_end_runs_to_the_end():
    assert blocks("a\n\n~~~\n# b\n") == [("paragraph", "a"), ("code", "~~~\n# b")]
    assert blocks("````\n```\n````") == [("code", "````\n```\n````")]
    assert blocks("```") == [("code", "```")]


def test_lines_are_those_of_the_source():
    document = Document("/a.md", SOURCE, "", anchors=parse_markdown(SOURCE).anchors)
    start = SOURCE.index("Words")
    assert document.place(start, SOURCE.index("Part")).lines == (5, 6)
