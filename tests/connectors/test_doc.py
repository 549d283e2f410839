"""The binary format of Word 97 gives its text in order, whatever pieces it lies in."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.doc import parse_doc
from epicrag.types import Unread

_TABLES = 48
_AT = 2048
"""Where the text begins; pages of properties follow it, at multiples of 512."""
HEADING, HIDDEN = (1, b""), b"\x3c\x08\x01"
IN_TABLE, ROW_END = (0, b"\x16\x24\x01"), (0, b"\x16\x24\x01\x17\x24\x01")
ITEM = (0, b"\x0b\x46\x01\x00")


def word(
    pieces: list[tuple[str, bool]],
    *,
    properties: list[tuple[int, tuple[int, bytes]]] = (),  # type: ignore[assignment]
    hidden: tuple[int, int] | None = None,
    notes: str = "",
    refs: tuple[int, ...] = (),
    flags: int = 0,
    version: int = 0x00C1,
) -> dict[tuple[str, ...], bytes]:
    """The streams of a file whose text lies in these pieces, (text, is it wide?).

    `properties` are (end of a paragraph in the text, (style, changes)); only for text in one narrow piece.
    """
    pieces = [*pieces, (notes, False)] if notes else pieces
    text, positions, entries, at = b"", [0], b"", _AT
    for part, wide in pieces:
        data = part.encode("utf-16-le" if wide else "cp1252")
        offset = at if wide else at * 2 | 0x40000000
        entries += struct.pack("<HIH", 0, offset, 0)
        text, at = text + data, at + len(data)
        positions.append(positions[-1] + len(data) // (2 if wide else 1))
    table = struct.pack(f"<{len(positions)}I", *positions) + entries
    tables = {33: b"\x02" + struct.pack("<I", len(table)) + table}
    main = bytes(_AT) + text
    page = -(-len(main) // 512)
    main = main.ljust(page * 512, b"\0")
    if properties:
        main += _paragraph_page(properties)
        tables[13] = struct.pack("<III", _AT, _AT + 10_000, page)
        page += 1
    if hidden:
        main += _character_page(hidden)
        tables[12] = struct.pack("<III", _AT, _AT + 10_000, page)
    if notes:
        tables[2] = struct.pack(f"<{len(refs) + 1}I", *refs, 0) + bytes(2 * len(refs))
        tables[3] = struct.pack("<III", 0, len(notes), len(notes))
    stream, pairs = b"", b""
    for index in range(_TABLES):
        data = tables.get(index, b"")
        pairs += struct.pack("<II", len(stream) if data else 0, len(data))
        stream += data
    header = bytearray(_AT)
    struct.pack_into("<HH", header, 0, 0xA5EC, version)
    struct.pack_into("<H", header, 10, flags)
    length = positions[-1] - len(notes)
    struct.pack_into("<ii", header, 76, length, len(notes))
    header[154 : 154 + len(pairs)] = pairs
    return {("WordDocument",): bytes(header) + main[_AT:], ("0Table",): stream or b"x"}


def _paragraph_page(properties: list[tuple[int, tuple[int, bytes]]]) -> bytes:
    places, boxes, data = [_AT], b"", {}
    end = 510
    for place, (style, changes) in properties:
        content = struct.pack("<H", style) + changes
        content = bytes([0, -(-len(content) // 2)]) + content + b"\0" * (len(content) % 2)
        end = (end - len(content)) // 2 * 2
        data[end] = content
        places.append(_AT + place)
        boxes += bytes([end // 2]) + bytes(12)
    page = bytearray(512)
    head = struct.pack(f"<{len(places)}I", *places) + boxes
    page[: len(head)] = head
    for at, content in data.items():
        page[at : at + len(content)] = content
    page[511] = len(properties)
    return bytes(page)


def _character_page(hidden: tuple[int, int]) -> bytes:
    page = bytearray(512)
    places = struct.pack("<IIII", _AT, _AT + hidden[0], _AT + hidden[1], _AT + 10_000)
    page[: len(places) + 3] = places + bytes([0, 200, 0])
    page[400:404] = bytes([3]) + HIDDEN
    page[511] = 3
    return bytes(page)


def parsed(data: bytes) -> Parsed:
    answer = parse_doc(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def test_pieces_are_joined_whatever_their_width(make_ole):
    pieces = [("It’s nar", False), ("row and wide: 日本\r", True), ("Last 𐌲\r", True)]
    assert parsed(make_ole(word(pieces))).text == "It’s narrow and wide: 日本\n\nLast 𐌲"


def test_headings_lists_and_tables_are_known_by_their_properties(make_ole):
    text, properties = "", list[tuple[int, tuple[int, bytes]]]()
    for part, kind in [
        ("Head\r", HEADING),
        ("plain\r", (0, b"")),
        ("item\r", ITEM),
        ("Region\x07", IN_TABLE),
        ("Sales\x07", IN_TABLE),
        ("\x07", ROW_END),
        ("North\x07", IN_TABLE),
        ("\x07", IN_TABLE),
        ("\x07", ROW_END),
        ("after\r", (0, b"")),
    ]:
        text += part
        properties.append((len(text), kind))
    streams = word([(text, False)], properties=properties)
    # A heading is the style of number 1, which is built in: its definition says so, too.
    main = bytearray(streams["WordDocument",])
    styles = struct.pack("<HHHHHHHH", 2, 2, 4, 0, 0xFFF0, 4, 1, 0xFFF0)
    struct.pack_into("<II", main, 154 + 8, len(streams["0Table",]), len(styles))
    streams["WordDocument",] = bytes(main)
    streams["0Table",] += styles
    content = parsed(make_ole(streams))
    assert content.text == "Head\n\nplain\n\n- item\n\nRegion | Sales\nNorth\n\nafter"
    assert content.title == "Head"
    assert content.tables[0].head == "Region | Sales"


def test_fields_show_their_results_and_signs_are_mended(make_ole):
    text = "See \x13 HYPERLINK \x13 REF \x14x\x15 \x14the page\x15 of 9\x1e10\x0bhere\x01\r\x13broken\r"
    assert parsed(make_ole(word([(text, False)]))).text == "See the page of 9-10\nhere"


def test_hidden_text_is_left_out(make_ole):
    streams = word([("The fee is not 5\r", False)], hidden=(11, 15))
    assert parsed(make_ole(streams)).text == "The fee is 5"


def test_footnotes_follow_the_paragraph_that_refers_to_them(make_ole):
    streams = word([("Said\x02 so\rnext\r", False)], notes="\x02 by whom\r", refs=(4,))
    text = parsed(make_ole(streams)).text
    assert text == "Said (footnote 1) so\n\nFootnote 1: by whom\n\nnext"


def test_rich_text_under_this_name_is_read():
    assert parsed(b"{\\rtf1 text}").text == "text"


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_doc(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_word_file_says_so(make_ole, make_zip):
    one = [("text\r", False)]
    assert "encrypted" in failure(make_ole(word(one, flags=0x100)))
    assert "Word 95" in failure(make_ole(word(one, version=0x0065)))
    assert "cut off" in failure(make_ole({("WordDocument",): b"x"}))
    assert "pieces is missing" in failure(make_ole({**word(one), ("0Table",): b"x"}))
    assert "Excel 97" in failure(make_ole({("Workbook",): b"x"}))
    assert "docx" in failure(make_zip({"a": "x"}))
    assert "HTML" in failure(b"<html>")
    assert "0 bytes" in failure(b"")
    whole = make_ole(word([("text " * 4_000, False)]))
    assert failure(whole[:4_000]).startswith("failed")


def test_pieces_that_share_their_bytes_are_refused(make_ole):
    streams = word([("some text " * 300, False)] * 2)
    table = bytearray(streams["0Table",])
    struct.pack_into("<III", table, 5, 0, 3_000, 9_000_000)
    streams["0Table",] = bytes(table)
    assert "longer than the file" in failure(make_ole(streams))


def test_limits(make_ole):
    data = make_ole(word([("text\r" * 100, False)]))
    assert "--max-chars" in failure(data, Limits(max_chars=50))
    assert "--max-file-seconds" in failure(data, Limits(max_file_seconds=-1))


@pytest.fixture(scope="module")
def streams() -> dict[tuple[str, ...], bytes]:
    properties = [(5, HEADING), (10, IN_TABLE), (20, ROW_END)]
    return word(
        [("Head\rcell\x07rest of it\r", False)], properties=properties, hidden=(2, 4), notes="x\r"
    )


@given(data=st.data())
def test_no_damage_breaks_the_reader(data: st.DataObject, streams, make_ole):
    changed = dict(streams)
    for name, whole in streams.items():
        content = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 6))):
            at = data.draw(st.integers(0, min(len(content), 2_600) - 1))
            content[at] = data.draw(st.integers(0, 255))
        changed[name] = bytes(content)
    answer = parse_doc(make_ole(changed), Limits())
    assert isinstance(answer, Parsed | Unread)
