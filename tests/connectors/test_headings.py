"""A heading closes those of its own level and deeper, and no others."""

from epicrag.connectors.headings import Headings


def test_headings_are_joined_outermost_first():
    headings = Headings()
    assert headings.path is None
    assert headings.enter(2, "A") == "A"
    assert headings.enter(4, " b\n b ") == "A > b b"
    assert headings.enter(3, "c") == "A > c"
    assert headings.enter(3, "d") == "A > d"
    assert headings.enter(2, "") is None
    assert headings.enter(1, "E") == "E"


def test_a_heading_as_long_as_a_paragraph_is_shortened():
    path = Headings().enter(1, "word " * 100)
    assert path is not None and len(path) <= 200 and path.endswith("…")
