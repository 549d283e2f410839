"""The binary format of PowerPoint 97 gives its slides in the order they are shown."""

import struct

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.ppt import parse_ppt
from epicrag.types import Document, Unread


def record(kind: int, content: bytes, instance: int = 0, *, container: bool = False) -> bytes:
    return struct.pack("<HHI", instance << 4 | 15 * container, kind, len(content)) + content


def box(text: str, kind: int | None = None) -> bytes:
    head = record(3999, struct.pack("<I", kind)) if kind is not None else b""
    return record(0xF00D, head + record(4000, text.encode("utf-16-le")), container=True)


def shape(content: bytes, top: int = 0, left: int = 0) -> bytes:
    return record(
        0xF004, record(0xF010, struct.pack("<hhhh", top, left, 0, 0)) + content, container=True
    )


def cell(text: str, left: int, top: int) -> bytes:
    anchor = record(0xF00F, struct.pack("<iiii", left, top, 0, 0))
    return record(0xF004, anchor + box(text), container=True)


def slide(*shapes: bytes, notes: int = 0, more: bytes = b"") -> bytes:
    atom = record(1007, bytes(16) + struct.pack("<I", notes))
    group = record(0xF003, record(0xF004, b"", container=True) + b"".join(shapes), container=True)
    drawing = record(1036, record(0xF002, group, container=True), container=True)
    return record(1006, atom + drawing + more, container=True)


def listed(part: int, number: int, *texts: tuple[int, bytes]) -> bytes:
    found = record(1011, struct.pack("<IIiI", part, 0, 0, number))
    for kind, text in texts:
        found += record(3999, struct.pack("<I", kind)) + record(4008, text)
    return found


def deck(
    slides: list[bytes], order: bytes, notes: bytes = b"", token: int = 0xE391C05F
) -> dict[tuple[str, ...], bytes]:
    """The streams of a presentation; its parts are the document, then the slides, from 1 on."""
    document = record(4080, order, 0, container=True) + record(4080, notes, 2, container=True)
    data, offsets = b"", []
    for part in (record(1000, document, container=True), *slides):
        offsets.append(len(data))
        data += part
    directory = len(data)
    data += record(
        6002,
        struct.pack("<I", 1 | len(offsets) << 20)
        + b"".join(struct.pack("<I", offset) for offset in offsets),
    )
    edit = len(data)
    data += record(4085, struct.pack("<IIIII", 0, 0, 0, directory, 1) + bytes(8))
    user = bytes(12) + struct.pack("<II", token, edit)
    return {("PowerPoint Document",): data, ("Current User",): user}


def parsed(data: bytes) -> Parsed:
    answer = parse_ppt(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def test_slides_are_in_the_order_they_are_shown_not_stored(make_ole):
    slides = [slide(shape(box("stored first", 0))), slide(shape(box("stored last", 0)))]
    content = parsed(make_ole(deck(slides, listed(3, 257) + listed(2, 256))))
    assert content.text == "stored last\n\nstored first"
    assert content.title == "stored last"
    document = Document("/d", content.text, "", anchors=content.anchors)
    place = document.place(content.text.index("stored first"), len(content.text))
    assert (place.page, place.part, place.heading) == (2, "slide 2", "stored first")


def test_the_outline_is_shown_where_a_shape_refers_to_it(make_ole):
    reference = record(0xF00D, record(3998, struct.pack("<I", 1)), container=True)
    slides = [slide(shape(box("below"), 900), shape(reference, 100))]
    order = listed(2, 256, (0, b"Title"), (1, b"one\rtwo"))
    assert parsed(make_ole(deck(slides, order))).text == "Title\n\n- one\n- two\n\nbelow"


def test_boxes_in_rows_and_columns_are_a_table(make_ole):
    cells = [cell(text, at % 2 * 9, at // 2 * 9) for at, text in enumerate(["a", "b", "c", "d"])]
    inner = record(0xF003, shape(b"", 500) + b"".join(cells), container=True)
    slides = [slide(inner, shape(box("above"), 10))]
    assert parsed(make_ole(deck(slides, listed(2, 256)))).text == "above\n\na | b\nc | d"


def test_notes_and_comments_follow_their_slide(make_ole):
    comment = record(4026, "Ann".encode("utf-16-le"), 0) + record(
        4026, "Why?".encode("utf-16-le"), 1
    )
    more = record(5000, record(12000, comment, container=True), container=True)
    notes = record(1008, shape(box("said", 2)) + shape(box("*", 4)), container=True)
    slides = [slide(shape(box("shown\x0bso")), notes=300, more=more), notes]
    content = parsed(make_ole(deck(slides, listed(2, 256), listed(3, 300))))
    assert content.text == "shown\nso\n\nNotes: said\n\n[Comment by Ann: Why?]"


def test_the_newest_version_of_a_slide_is_read(make_ole):
    streams = deck([slide(shape(box("old")))], listed(2, 256))
    data, user = streams["PowerPoint Document",], streams["Current User",]
    first = struct.unpack_from("<I", user, 16)[0]
    newer = len(data)
    data += slide(shape(box("new")))
    directory = len(data)
    data += record(6002, struct.pack("<II", 2 | 1 << 20, newer))
    edit = len(data)
    data += record(4085, struct.pack("<IIIII", 0, 0, first, directory, 1) + bytes(8))
    streams = {
        ("PowerPoint Document",): data,
        ("Current User",): user[:16] + struct.pack("<I", edit),
    }
    assert parsed(make_ole(streams)).text == "new"


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_ppt(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_presentation_says_so(make_ole):
    one = deck([slide(shape(box("x")))], listed(2, 256))
    assert "encrypted" in failure(make_ole(deck([], b"", token=0xF3D1C4DF)))
    assert "does not say where" in failure(make_ole({("PowerPoint Document",): b"x" * 5_000}))
    lost = {**one, ("Current User",): bytes(20)}
    assert "directory is missing" in failure(make_ole(lost))
    assert "Word 97" in failure(make_ole({("WordDocument",): b"x"}))
    assert "--max-pages" in failure(
        make_ole(deck([slide()], listed(2, 256) * 3)), Limits(max_pages=2)
    )


def test_no_cut_breaks_the_reader(make_ole):
    whole = deck([slide(shape(box("x"))), slide()], listed(2, 256) + listed(3, 257))
    data = whole["PowerPoint Document",]
    for end in range(0, len(data), 7):
        streams = {**whole, ("PowerPoint Document",): data[:end] + bytes(len(data) - end)}
        assert isinstance(parse_ppt(make_ole(streams), Limits()), Parsed | Unread)
