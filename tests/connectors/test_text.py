"""Plain text keeps its characters, its paragraphs and its line numbers."""

from epicrag.connectors.text import parse_text
from epicrag.types import Document


def test_paragraphs_are_what_stands_between_blank_lines():
    text = "\n\n  one\nstill one\n \t\ntwo\n\f\nthree  \n"
    parsed = parse_text(text)
    assert parsed.text == text
    assert [text[b.start : b.end] for b in parsed.blocks] == ["one\nstill one", "two", "three"]


def test_lines_are_counted_by_line_feeds_only():
    text = "a\u2028b\x0bc\x85d\n\n\ne\n\n"
    document = Document("/a.txt", text, "", anchors=parse_text(text).anchors)
    assert document.place(0, 1).lines == (1, 1)
    at = text.index("e")
    assert document.place(at, at + 1).lines == (4, 4)
    assert document.place(0, len(text)).lines == (1, 4)  # not the blank lines at the end
