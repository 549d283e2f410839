"""PowerPoint 97 files: a page per slide, in the order they are shown, with notes and comments."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from epicrag.connectors.base import (
    Limits,
    Parsed,
    RefusedError,
    Watch,
    refusing,
    too_many_parts,
)
from epicrag.connectors.ole import open_ole, stream, summary
from epicrag.connectors.prose import Prose
from epicrag.connectors.rows import one_line
from epicrag.connectors.tables import TableCell, TableRow, write_table
from epicrag.types import Unread

_DOCUMENT, _SLIDES, _PERSIST, _SLIDE_ATOM = 1000, 4080, 1011, 1007
_EDIT, _DIRECTORY = 4085, 6002
_HEADER, _CHARS, _BYTES, _OUTLINE, _STRING = 3999, 4000, 4008, 3998, 4026
_COMMENT, _GROUP, _SHAPE, _TEXT_BOX = 12000, 0xF003, 0xF004, 0xF00D
_ANCHOR, _CHILD_ANCHOR = 0xF010, 0xF00F
_TITLES = frozenset([0, 6])
_BODIES = frozenset([1, 7, 8])
_NOTES = 2
_ENCRYPTED = 0xF3D1C4DF
_MAX_EDITS = 10_000
_MAX_DEPTH = 50
_BAND = 180
"""Shapes whose upper edges lie within this distance stand side by side; a slide is 4,320 high."""


class _Record(NamedTuple):
    """A record: what it is, and where its content lies."""

    kind: int
    instance: int
    is_container: bool
    start: int
    end: int


class _Text(NamedTuple):
    kind: int
    """0 a title, 1 a body, 2 notes, 4 another text, 6 a centred title …"""
    text: str


@refusing
def parse_ppt(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a presentation of PowerPoint 97 to 2003."""
    ole = open_ole(data, "PowerPoint 97", ("PowerPoint Document",))
    try:
        deck = _Deck(stream(ole, "PowerPoint Document"), stream(ole, "Current User"))
        reader = _Reader(deck, limits)
        reader.run()
    except (struct.error, IndexError) as error:
        return _damaged(str(error))
    return reader.prose.parsed("application/vnd.ms-powerpoint", summary(ole))


class _Deck:
    """The stream of a presentation: records, and where the newest version of each part stands."""

    def __init__(self, data: bytes, user: bytes) -> None:
        if len(user) < 20:
            raise RefusedError(_damaged("it does not say where it begins"))
        token, offset = struct.unpack_from("<II", user, 12)
        if token == _ENCRYPTED:
            reason = "encrypted PowerPoint file: it opens with a password only; save an open copy"
            raise RefusedError(Unread("failed", reason))
        self.data = data
        self._parts: dict[int, int] = {}
        self._root = 0
        self._read_edits(offset)

    def part(self, number: int) -> _Record | None:
        """The record of a part, by its number."""
        offset = self._parts.get(number)
        return self.record(offset) if offset is not None else None

    @property
    def document(self) -> _Record:
        """The record that holds the presentation as a whole."""
        found = self.part(self._root)
        if found is None or found.kind != _DOCUMENT:
            raise RefusedError(_damaged("its document is missing"))
        return found

    def record(self, offset: int) -> _Record | None:
        """The record that begins at an offset; None where there is none."""
        if offset < 0 or offset + 8 > len(self.data):
            return None
        version, kind, size = struct.unpack_from("<HHI", self.data, offset)
        end = min(offset + 8 + size, len(self.data))
        return _Record(kind, version >> 4, version & 0xF == 0xF, offset + 8, end)

    def children(self, parent: _Record) -> Iterator[_Record]:
        """The records within a record."""
        at = parent.start
        while at + 8 <= parent.end and (found := self.record(at)) is not None:
            yield found
            at = found.end

    def below(self, parent: _Record, kind: int, depth: int = 0) -> Iterator[_Record]:
        """All records of a kind below a record."""
        for child in self.children(parent):
            if child.kind == kind:
                yield child
            elif child.is_container and depth < _MAX_DEPTH:
                yield from self.below(child, kind, depth + 1)

    def content(self, record: _Record) -> bytes:
        return self.data[record.start : record.end]

    def number(self, record: _Record, at: int) -> int:
        """A number of four bytes within a record; 0 where it is too short."""
        content = self.data[record.start + at : min(record.start + at + 4, record.end)]
        return int.from_bytes(content, "little") if len(content) == 4 else 0

    def _read_edits(self, offset: int) -> None:
        """Follow the versions of the file from the last to the first: the newest of a part holds."""
        seen: set[int] = set()
        while offset and offset not in seen and len(seen) < _MAX_EDITS:
            seen.add(offset)
            edit = self.record(offset)
            if edit is None or edit.kind != _EDIT:
                break
            self._root = self._root or self.number(edit, 16)
            directory = self.record(self.number(edit, 12))
            if directory is not None and directory.kind == _DIRECTORY:
                self._read_directory(self.content(directory))
            offset = self.number(edit, 8)
        if not self._parts:
            raise RefusedError(_damaged("its directory is missing"))

    def _read_directory(self, content: bytes) -> None:
        at = 0
        while at + 4 <= len(content):
            head = struct.unpack_from("<I", content, at)[0]
            first, count = head & 0xFFFFF, head >> 20
            at += 4
            for number in range(min(count, (len(content) - at) // 4)):
                offset = struct.unpack_from("<I", content, at + 4 * number)[0]
                self._parts.setdefault(first + number, offset)
            at += 4 * count


class _Reader:
    """Writes the slides one after the other."""

    def __init__(self, deck: _Deck, limits: Limits) -> None:
        self._deck = deck
        self._limits = limits
        self._watch = Watch(limits)
        self._outline: list[_Text] = []
        self.prose = Prose()
        self.draft = self.prose.draft

    def run(self) -> None:
        slides = self._lists(0)
        notes = {number: part for number, part, _ in self._lists(2)}
        if len(slides) > self._limits.max_pages:
            raise RefusedError(too_many_parts(len(slides), self._limits.max_pages, "slides"))
        for number, (_, part, outline) in enumerate(slides, 1):
            self._watch.check(self.draft.length)
            self.draft.page, self.draft.part = number, f"slide {number}"
            self.draft.leave_headings()
            self._outline = outline
            self._slide(part, number, notes)

    def _lists(self, instance: int) -> list[tuple[int, int, list[_Text]]]:
        """(id, part, texts of the outline) of the slides (0) or the pages of notes (2), in order."""
        found: list[tuple[int, int, list[_Text]]] = []
        for group in self._deck.children(self._deck.document):
            if group.kind != _SLIDES or group.instance != instance:
                continue
            kind = 4
            for record in self._deck.children(group):
                if record.kind == _PERSIST:
                    part, number = self._deck.number(record, 0), self._deck.number(record, 12)
                    found.append((number, part, []))
                elif record.kind == _HEADER:
                    kind = self._deck.number(record, 0)
                elif found and (text := self._text(record)) is not None:
                    found[-1][2].append(_Text(kind, text))
        return found

    def _text(self, record: _Record) -> str | None:
        if record.kind == _CHARS:
            return self._deck.content(record).decode("utf-16-le", "replace")
        if record.kind == _BYTES:
            return self._deck.content(record).decode("latin-1")
        return None

    # --- slides ---

    def _slide(self, part: int, number: int, notes: dict[int, int]) -> None:
        slide = self._deck.part(part)
        items = list(self._shapes(slide)) if slide is not None else []
        texts = [text for item in items if isinstance(item, list) for text in item]
        # What the outline knows and no shape shows: all of it, where the slide itself is damaged.
        items += [[text] for text in self._outline if text not in texts]
        title = next((text for text in [*texts, *self._outline] if text.kind in _TITLES), None)
        if title is not None and (line := one_line(_clean(title.text))):
            self.prose.slide(number, line)
        for item in items:
            if isinstance(item, list):
                for text in item:
                    if text is not title:
                        self._write(text)
            else:
                write_table(self.draft, item, self._watch)
        if slide is not None:
            self._notes(slide, notes)
            self._comments(slide)

    def _write(self, text: _Text) -> None:
        lines = [line for line in _clean(text.text).split("\n\n") if line.strip()]
        is_list = text.kind in _BODIES and len(lines) > 1
        gap = "\n\n"
        for line in lines:
            self.draft.open("row" if is_list else "paragraph", gap)
            self.draft.write(f"- {line.strip()}" if is_list else line.strip())
            self.draft.close()
            gap = "\n"

    def _notes(self, slide: _Record, notes: dict[int, int]) -> None:
        atom = next((item for item in self._deck.children(slide) if item.kind == _SLIDE_ATOM), None)
        if atom is None or (part := notes.get(self._deck.number(atom, 16))) is None:
            return
        page = self._deck.part(part)
        for box in self._deck.below(page, _TEXT_BOX) if page is not None else ():
            for text in self._box(box):
                if text.kind == _NOTES and (
                    line := _clean(text.text).replace("\n\n", "\n").strip()
                ):
                    self.prose.plain(f"Notes: {line}")

    def _comments(self, slide: _Record) -> None:
        for comment in self._deck.below(slide, _COMMENT):
            strings = {
                child.instance: self._deck.content(child).decode("utf-16-le", "replace")
                for child in self._deck.children(comment)
                if child.kind == _STRING
            }
            author, text = one_line(strings.get(0, "")), one_line(strings.get(1, ""))
            if text:
                self.prose.plain(
                    f"[Comment by {author}: {text}]" if author else f"[Comment: {text}]"
                )

    # --- shapes ---

    def _shapes(self, slide: _Record) -> Iterator[list[_Text] | tuple[TableRow, ...]]:
        """The texts and tables of a slide, from the top, and from the left where they stand side by side."""
        found: list[tuple[tuple[int, int], list[_Text] | tuple[TableRow, ...]]] = []
        for child in self._deck.children(slide):
            if child.kind == 1036:  # the drawing
                for group in self._deck.below(child, _GROUP):
                    found += self._group(group, 0)
        for _, item in sorted(found, key=lambda item: item[0]):
            yield item

    def _group(
        self, group: _Record, depth: int
    ) -> Iterator[tuple[tuple[int, int], list[_Text] | tuple[TableRow, ...]]]:
        place = (0, 0)
        for number, child in enumerate(self._deck.children(group)):
            if child.kind == _SHAPE:
                own = self._place(child)
                if number == 0:  # the group itself
                    place = own
                    if depth and (rows := self._table(group)):
                        yield place, rows
                        return
                texts = [
                    text for box in self._deck.below(child, _TEXT_BOX) for text in self._box(box)
                ]
                if texts:
                    yield (own if depth == 0 else place), texts
            elif child.kind == _GROUP and depth < _MAX_DEPTH:
                for inner_place, item in self._group(child, depth + 1):
                    yield (inner_place if depth == 0 else place), item

    def _place(self, shape: _Record) -> tuple[int, int]:
        for child in self._deck.children(shape):
            content = self._deck.content(child)
            if child.kind == _ANCHOR and len(content) == 8:
                top, left = struct.unpack_from("<hh", content)
                return top // _BAND, left
            if child.kind == _ANCHOR and len(content) >= 16:
                left, top = struct.unpack_from("<ii", content)
                return top // _BAND, left
        return 0, 0

    def _table(self, group: _Record) -> tuple[TableRow, ...]:
        """The rows of a group of boxes that stand in rows and columns; none where they do not."""
        cells: dict[int, dict[int, str]] = {}
        for child in list(self._deck.children(group))[1:]:
            if child.kind != _SHAPE:
                continue
            anchor = next((a for a in self._deck.children(child) if a.kind == _CHILD_ANCHOR), None)
            if anchor is None or anchor.end - anchor.start < 16:
                return ()
            left, top = struct.unpack_from("<ii", self._deck.content(anchor))
            boxes = list(self._deck.below(child, _TEXT_BOX))
            if boxes:
                texts = [_clean(text.text) for box in boxes for text in self._box(box)]
                cells.setdefault(top, {})[left] = one_line(" ".join(texts))
        columns = sorted({left for row in cells.values() for left in row})
        full = sum(len(row) for row in cells.values())
        if len(cells) < 2 or len(columns) < 2 or 4 * full < 3 * len(cells) * len(columns):
            return ()
        rows = [[cells[top].get(left, "") for left in columns] for top in sorted(cells)]
        return tuple(TableRow([TableCell(text) for text in row]) for row in rows)

    def _box(self, box: _Record) -> Iterator[_Text]:
        """The texts of a box: its own, or those of the outline that it shows."""
        kind = 4
        for record in self._deck.children(box):
            if record.kind == _HEADER:
                kind = self._deck.number(record, 0)
            elif record.kind == _OUTLINE:
                index = self._deck.number(record, 0)
                if index < len(self._outline):
                    yield self._outline[index]
            elif (text := self._text(record)) is not None and text.strip("*\r "):
                yield _Text(kind, text)


def _clean(text: str) -> str:
    """Paragraphs with empty lines between them; what has no meaning as text taken out."""
    text = text.replace("\x0b", "\n").replace("\r", "\n\n").replace("\xa0", " ")
    return "".join(sign for sign in text if sign in "\n\t" or sign >= " ")


def _damaged(what: str) -> Unread:
    return Unread("failed", f"damaged PowerPoint 97 file: {what}; copy or download it again")
