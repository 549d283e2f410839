"""What is written into a draft comes out with its places."""

from epicrag.connectors.draft import Draft
from epicrag.types import Document


def test_blocks_are_stripped_and_empty_ones_leave_no_trace():
    draft = Draft()
    for text in ("  one ", " \n ", "two\n"):
        draft.open("paragraph")
        draft.write(text)
        draft.close()
    assert draft.text() == "one\n\ntwo"
    assert [(block.start, block.end) for block in draft.blocks] == [(0, 3), (5, 8)]
    assert draft.length == 8


def test_places_change_where_the_writer_says_so():
    draft = Draft()
    for page, line, level, text in [(1, 1, None, "a"), (1, 4, 1, "Top"), (2, 9, None, "b")]:
        draft.page, draft.line = page, line
        draft.open("paragraph")
        draft.write(text)
        draft.close(level)
    document = Document("/d", draft.text(), "", anchors=draft.anchors())
    places = [document.place(block.start, block.end) for block in draft.blocks]
    assert [(p.page, p.lines, p.heading) for p in places] == [
        (1, (1, 1), None),
        (1, (4, 4), "Top"),
        (2, (9, 9), "Top"),
    ]
