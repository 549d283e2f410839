"""The binary format of Word 97 to 2003: pieces of text, and what is known of each paragraph.

Only what matters for reading is taken: the piece table, the properties of paragraphs and characters that
make headings, lists, tables and hidden text, and where notes are referred to.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from epicrag.connectors.base import RefusedError
from epicrag.types import Unread

_MAX_PIECES = 2_000_000
_PAGE = 512
_FIRST_PAIR = 154
"""Where the pairs of (offset, size) of all tables begin in the file's header."""

STYLES, FOOTNOTE_REFS, FOOTNOTES, COMMENT_REFS, COMMENTS = 1, 2, 3, 4, 5
MARGINS, CHARACTERS, PARAGRAPHS, PIECES, OWNERS, ENDNOTE_REFS, ENDNOTES = 11, 12, 13, 33, 36, 46, 47
"""Places of tables among these pairs."""

_TITLE = 62
_CONTENTS = range(19, 28)
_OUTLINE, _LIST, _LEVEL = 0x2640, 0x460B, 0x260A
_IN_TABLE, _ROW_END, _NESTING = 0x2416, 0x2417, 0x6649
_INNER_CELL, _INNER_ROW_END = 0x244B, 0x244C
_HIDDEN, _DELETED = 0x083C, 0x0800
_SIZES = (1, 1, 2, 4, 2, 2, 0, 3)


_CP1252 = {
    byte: bytes([byte]).decode("cp1252")
    for byte in range(128, 160)
    if byte not in (129, 141, 143, 144, 157)
}


class Paragraph(NamedTuple):
    """What is known of a paragraph."""

    style: int = 0
    outline: int | None = None
    """Its own outline level from 0, if it has one; 9 is text."""
    in_list: bool = False
    depth: int = 0
    in_table: bool = False
    ends_row: bool = False
    nesting: int = 1


_PLAIN = Paragraph()


class Style(NamedTuple):
    """A style: its number among the built-in ones, and the style it is based on."""

    kind: int
    base: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text from character `start` on, at `offset` in the file, of one or two bytes a character."""

    start: int
    end: int
    offset: int
    width: int


class Word97:
    """A document's text by character positions, and what is known of each."""

    def __init__(self, main: bytes, tables: tuple[bytes, bytes]) -> None:
        """Take the stream of the document and the two streams of tables apart; damage raises RefusedError."""
        if len(main) < _FIRST_PAIR + 8 * (ENDNOTES + 1):
            raise RefusedError(damaged("its header is cut off"))
        magic, version = struct.unpack_from("<HH", main, 0)
        flags = struct.unpack_from("<H", main, 10)[0]
        if magic != 0xA5EC or version < 0x00C1:
            reason = "a file of Word 95 or older, which is not read; save it as docx"
            raise RefusedError(Unread("failed", reason))
        if flags & 0x0100:
            reason = "encrypted Word file: it opens with a password only; save an open copy"
            raise RefusedError(Unread("failed", reason))
        self._main = main
        self._table = tables[1] if flags & 0x0200 else tables[0]
        lengths = struct.unpack_from("<8i", main, 76)
        names = ("body", "footnotes", "margins", "macros", "comments", "endnotes", "boxes", "inner")
        self._parts: dict[str, tuple[int, int]] = {}
        start = 0
        for name, length in zip(names, lengths, strict=True):
            self._parts[name] = (start, start + max(length, 0))
            start += max(length, 0)
        self.pieces = self._read_pieces()
        self._starts = [piece.start for piece in self.pieces]
        self._paragraphs = _Runs(main, self.table(PARAGRAPHS), paragraph=True)
        self._characters = _Runs(main, self.table(CHARACTERS), paragraph=False)
        self.styles = self._read_styles()

    def table(self, index: int) -> bytes:
        """A table of the document, b"" where there is none."""
        offset, size = struct.unpack_from("<II", self._main, _FIRST_PAIR + 8 * index)
        return self._table[offset : offset + size] if size else b""

    def part(self, name: str) -> tuple[int, int]:
        """Where a part of the text begins and ends: "body", "footnotes", "margins", "comments" …"""
        return self._parts[name]

    def text(self, start: int, end: int) -> str:
        """The characters from `start` to `end`, hidden and deleted ones as NULs, so that positions hold."""
        return "".join(self._texts(start, end))

    def paragraph(self, position: int) -> Paragraph:
        """What is known of the paragraph whose mark stands here."""
        place = self._place(position)
        return self._paragraphs.at(place) if place is not None else _PLAIN

    def level(self, paragraph: Paragraph) -> int | None:
        """The level of a heading, from 1; 0 for a title; None for what is none."""
        if paragraph.outline is not None:
            return paragraph.outline + 1 if paragraph.outline < 9 else None
        for kind in self._kinds(paragraph.style):
            if kind == _TITLE:
                return 0
            if 1 <= kind <= 9:
                return kind
        return None

    def is_contents(self, paragraph: Paragraph) -> bool:
        """Is it a line of a table of contents?"""
        return any(kind in _CONTENTS for kind in self._kinds(paragraph.style))

    def positions(self, index: int, size: int) -> list[int]:
        """The character positions in a table of them, each but the last with `size` bytes of data."""
        return _positions(self.table(index), size)

    # --- reading ---

    def _kinds(self, style: int) -> Iterator[int]:
        for _ in range(20):
            if style not in self.styles:
                return
            yield self.styles[style].kind
            style = self.styles[style].base

    def _texts(self, start: int, end: int) -> Iterator[str]:
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self.pieces) and self.pieces[at].start < end:
            piece = self.pieces[at]
            at += 1
            first, last = max(start, piece.start), min(end, piece.end)
            if first >= last:
                continue
            begin = piece.offset + (first - piece.start) * piece.width
            data = self._main[begin : begin + (last - first) * piece.width]
            text = data.decode("latin-1" if piece.width == 1 else "utf-16-le", "replace")
            if piece.width == 1:  # some bytes of cp1252 are no character: each is a position still
                text = text.translate(_CP1252)
            elif len(text) != last - first:  # characters of two halves: each half is a position
                text = _halves(data)
            yield self._without_hidden(text, begin, piece.width)

    def _without_hidden(self, text: str, begin: int, width: int) -> str:
        end = begin + len(text) * width
        for first, last in self._characters.hidden(begin, end):
            left = max((first - begin) // width, 0)
            right = min((last - begin) // width, len(text))
            text = text[:left] + "\0" * (right - left) + text[right:]
        return text

    def _place(self, position: int) -> int | None:
        """The offset in the file of a character."""
        at = bisect_right(self._starts, position) - 1
        if at < 0 or position >= self.pieces[at].end:
            return None
        piece = self.pieces[at]
        return piece.offset + (position - piece.start) * piece.width

    def _read_pieces(self) -> list[Piece]:
        data, at = self.table(PIECES), 0
        while at + 3 <= len(data) and data[at] == 1:  # properties of pieces come first
            at += 3 + struct.unpack_from("<H", data, at + 1)[0]
        if at + 5 > len(data) or data[at] != 2:
            raise RefusedError(damaged("its table of text pieces is missing"))
        table = data[at + 5 : at + 5 + struct.unpack_from("<I", data, at + 1)[0]]
        starts = _positions(table, 8)
        n_pieces = len(starts) - 1
        if not 0 < n_pieces <= _MAX_PIECES:
            raise RefusedError(damaged("its table of text pieces is empty"))
        if starts[-1] > len(self._main):  # pieces that share their bytes: a bomb
            raise RefusedError(damaged("its text is said to be longer than the file"))
        pieces = []
        for number, (start, end) in enumerate(pairwise(starts)):
            offset = struct.unpack_from("<I", table, 4 * (n_pieces + 1) + 8 * number + 2)[0]
            one_byte = bool(offset & 0x40000000)
            offset &= 0x3FFFFFFF
            piece = Piece(start, end, offset // 2 if one_byte else offset, 1 if one_byte else 2)
            if end < start or piece.offset + (end - start) * piece.width > len(self._main):
                raise RefusedError(damaged("its text lies behind its end"))
            pieces.append(piece)
        return pieces

    def _read_styles(self) -> dict[int, Style]:
        data = self.table(STYLES)
        if len(data) < 4:
            return {}
        at = 2 + struct.unpack_from("<H", data, 0)[0]
        styles: dict[int, Style] = {}
        for number in range(struct.unpack_from("<H", data, 2)[0]):
            if at + 2 > len(data):
                break
            size = struct.unpack_from("<H", data, at)[0]
            if size >= 4 and at + 6 <= len(data):
                kind, base = struct.unpack_from("<HH", data, at + 2)
                styles[number] = Style(kind & 0xFFF, base >> 4)
            at += 2 + size + size % 2
        return styles


class _Runs:
    """Properties by place in the file: of paragraphs, or of characters."""

    def __init__(self, main: bytes, table: bytes, *, paragraph: bool) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._found: list[Paragraph] = []
        starts = _positions(table, 4)
        n_pages = max(len(starts) - 1, 0)
        runs: list[tuple[int, int, Paragraph]] = []
        for number in range(n_pages):
            page = struct.unpack_from("<I", table, 4 * (n_pages + 1) + 4 * number)[0] & 0x3FFFFF
            data = main[page * _PAGE : (page + 1) * _PAGE]
            if len(data) == _PAGE:
                runs += _paragraphs(data) if paragraph else _hidden_runs(data)
        for start, end, found in sorted(runs, key=lambda run: run[0]):
            self._starts.append(start)
            self._ends.append(end)
            self._found.append(found)

    def at(self, place: int) -> Paragraph:
        """The properties that hold at a place."""
        at = bisect_right(self._starts, place) - 1
        return self._found[at] if at >= 0 and place < self._ends[at] else _PLAIN

    def hidden(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of hidden characters that touch a span."""
        at = max(bisect_right(self._starts, begin) - 1, 0)
        while at < len(self._starts) and self._starts[at] < end:
            if self._ends[at] > begin:
                yield self._starts[at], self._ends[at]
            at += 1


def _paragraphs(page: bytes) -> Iterator[tuple[int, int, Paragraph]]:
    count = page[-1]
    if 4 * (count + 1) + 13 * count > _PAGE:
        return
    places = struct.unpack_from(f"<{count + 1}I", page, 0)
    for number in range(count):
        at = 2 * page[4 * (count + 1) + 13 * number]
        if not at or at + 2 > _PAGE:
            yield places[number], places[number + 1], _PLAIN
            continue
        size = 2 * page[at] - 1 if page[at] else 2 * page[at + 1]
        at += 1 if page[at] else 2
        data = page[at : at + size]
        if len(data) < 2:
            continue
        found = _PLAIN._replace(style=struct.unpack_from("<H", data, 0)[0])
        for code, value in _changes(data[2:]):
            found = _changed(found, code, value)
        yield places[number], places[number + 1], found


def _changed(found: Paragraph, code: int, value: int) -> Paragraph:
    if code == _OUTLINE:
        return found._replace(outline=value)
    if code == _LIST:
        return found._replace(in_list=0 < value < 0xF801)
    if code == _LEVEL:
        return found._replace(depth=min(value, 8))
    if code == _IN_TABLE:
        return found._replace(in_table=bool(value))
    if code == _ROW_END:
        return found._replace(ends_row=bool(value))
    if code == _NESTING:
        return found._replace(nesting=value)
    return found


def _hidden_runs(page: bytes) -> Iterator[tuple[int, int, Paragraph]]:
    count = page[-1]
    if 4 * (count + 1) + count > _PAGE:
        return
    places = struct.unpack_from(f"<{count + 1}I", page, 0)
    for number in range(count):
        at = 2 * page[4 * (count + 1) + number]
        if at and at < _PAGE:
            data = page[at + 1 : at + 1 + page[at]]
            if any(code in (_HIDDEN, _DELETED) and value == 1 for code, value in _changes(data)):
                yield places[number], places[number + 1], _PLAIN


def _changes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (code, value) of changes to properties; of those longer than 4 bytes the value is 0."""
    at = 0
    while at + 2 < len(data):
        code = struct.unpack_from("<H", data, at)[0]
        at += 2
        size = _SIZES[code >> 13]
        if not size:
            if code == 0xD608 and at + 2 <= len(data):  # the only one whose size has two bytes
                at += struct.unpack_from("<H", data, at)[0] + 1
            else:
                at += data[at] + 1
            yield code, 0
            continue
        yield code, int.from_bytes(data[at : at + size], "little")
        at += size


def _positions(table: bytes, size: int) -> list[int]:
    """The positions at the head of a table with `size` bytes of data for each but the last."""
    count = (len(table) - 4) // (4 + size)
    return list(struct.unpack_from(f"<{count + 1}I", table, 0)) if count >= 0 and table else []


def _halves(data: bytes) -> str:
    """UTF-16 as characters of one position each; joined again by `mend_halves`."""
    return "".join(map(chr, struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])))


def mend_halves(text: str) -> str:
    """Join the halves of characters beyond the first 65,536."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def damaged(what: str) -> Unread:
    """The answer for a broken file."""
    return Unread("failed", f"damaged Word 97 file: {what}; copy or download it again")
