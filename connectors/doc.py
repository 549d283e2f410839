"""Word 97 files: headings, lists, tables, notes, comments and boxes."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from epicrag.connectors.base import Limits, Parsed, Watch, refusing
from epicrag.connectors.margins import only_in_margins
from epicrag.connectors.ole import open_ole, stream, summary
from epicrag.connectors.prose import Prose
from epicrag.connectors.rows import one_line
from epicrag.connectors.tables import TableCell, TableRow, write_table
from epicrag.connectors.word97 import (
    COMMENT_REFS,
    COMMENTS,
    ENDNOTE_REFS,
    ENDNOTES,
    FOOTNOTE_REFS,
    FOOTNOTES,
    MARGINS,
    OWNERS,
    Paragraph,
    Word97,
    damaged,
    mend_halves,
)
from epicrag.types import Unread

_MARKS = re.compile("[\r\x07\x0c]")
_FIELD = re.compile("\x13[^\x13\x14\x15]*(?:\x14([^\x13\x14\x15]*))?\x15")
_LOOSE = re.compile("\x13[^\x14\r\x07]*\x14?|[\x14\x15]")
_SIGNS = str.maketrans({"\x0b": "\n", "\x1e": "-", "\x1f": None, "\xa0": " ", "\x0e": None})
_NOTHING = re.compile("[\0-\x08\x0e-\x1f\uf000-\uf0ff]")
_MAX_ROWS_CELLS = 1_000


@refusing
def parse_doc(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a file of Word 97 to 2003. Hidden and deleted text and tables of contents are left out."""
    if data.lstrip()[:5] == b"{\\rtf":  # Word opens them under this name, too
        from epicrag.connectors.rtf import parse_rtf

        return parse_rtf(data, limits)
    ole = open_ole(data, "Word 97", ("WordDocument",))
    try:
        word = Word97(stream(ole, "WordDocument"), (stream(ole, "0Table"), stream(ole, "1Table")))
        reader = _Reader(word, limits)
        reader.run()
    except (struct.error, IndexError) as error:
        return damaged(str(error))
    return reader.prose.parsed("application/msword", summary(ole))


@dataclass(frozen=True, slots=True)
class _Note:
    label: str
    text: str
    end: str = ""


class _Reader:
    """Goes through the body from paragraph mark to paragraph mark."""

    def __init__(self, word: Word97, limits: Limits) -> None:
        self._word = word
        self._watch = Watch(limits)
        self._notes = self._read_notes()
        self._cells: list[str] = []
        self._cell: list[str] = []
        self._rows: list[TableRow] = []
        self._pending: list[_Note] = []
        self.prose = Prose()
        self.draft = self.prose.draft

    def run(self) -> None:
        start, end = self._word.part("body")
        text = self._plain_fields(self._word.text(start, end))
        at = 0
        for mark in _MARKS.finditer(text):
            self._watch.check(self.draft.length)
            position = start + mark.start()
            self._paragraph(text[at : mark.start()], at, mark[0], self._word.paragraph(position))
            at = mark.end()
        self._paragraph(text[at:], at, "\r", Paragraph())
        self._end_table()
        self._boxes()
        self._margins()

    # --- paragraphs ---

    def _paragraph(self, text: str, at: int, mark: str, known: Paragraph) -> None:
        for offset, character in enumerate(text) if "\x02" in text or "\x05" in text else ():
            if character in "\x02\x05" and (note := self._notes.get(at + offset)):
                self._pending.append(note)
        text = _clean(self._with_labels(text, at))
        if known.ends_row and known.nesting <= 1:
            self._end_row()
        elif mark == "\x07":
            self._cell.append(text)
            if len(self._cells) < _MAX_ROWS_CELLS:
                self._cells.append(one_line(" ".join(self._cell)))
            self._cell = []
        elif known.in_table:
            self._cell.append(text)
        else:
            self._end_table()
            self._write(text.strip(" \n"), known)
            self._tell()

    def _with_labels(self, text: str, at: int) -> str:
        if "\x02" not in text:
            return text
        return "".join(
            f" ({self._notes[at + offset].label[0].lower()}{self._notes[at + offset].label[1:-2]})"
            if character == "\x02" and at + offset in self._notes
            else character
            for offset, character in enumerate(text)
        )

    def _write(self, text: str, known: Paragraph) -> None:
        if not text.strip() or self._word.is_contents(known):
            return
        mark = "-" if known.in_list else None
        self.prose.text(text, self._word.level(known), mark, known.depth)

    # --- tables ---

    def _end_row(self) -> None:
        if self._cells:
            self._rows.append(TableRow([TableCell(text) for text in self._cells]))
        self._cells, self._cell = [], []

    def _end_table(self) -> None:
        if self._cells or self._cell:
            self._cells += [one_line(" ".join(self._cell))] if self._cell else []
            self._cell = []
            self._end_row()
        if self._rows:
            self.prose.end_list()
            write_table(self.draft, self._rows, self._watch)
            self._rows = []
            self._tell()

    # --- notes, boxes, margins ---

    def _tell(self) -> None:
        pending, self._pending = self._pending, []
        for note in pending:
            if note.text:
                self.prose.plain(f"{note.label}{note.text}{note.end}")

    def _read_notes(self) -> dict[int, _Note]:
        """The notes by the place in the body where they are referred to."""
        found: dict[int, _Note] = {}
        for kind, refs, texts, part, size in (
            ("Footnote", FOOTNOTE_REFS, FOOTNOTES, "footnotes", 2),
            ("Endnote", ENDNOTE_REFS, ENDNOTES, "endnotes", 2),
            ("Comment", COMMENT_REFS, COMMENTS, "comments", 30),
        ):
            places = self._word.positions(refs, size)[:-1]
            ends = self._word.positions(texts, 0)
            owners = self._owners() if kind == "Comment" and places else []
            for number, place in enumerate(places):
                if number + 1 < len(ends):
                    text = self._story(part, ends[number], ends[number + 1])
                    found[place] = self._note(kind, number, text, owners)
        return found

    def _note(self, kind: str, number: int, text: str, owners: list[str]) -> _Note:
        if kind != "Comment":
            return _Note(f"{kind} {number + 1}: ", text)
        table = self._word.table(COMMENT_REFS)
        count = (len(table) - 4) // 34
        at = 4 * (count + 1) + 30 * number + 20
        owner = int.from_bytes(table[at : at + 2], "little")
        name = owners[owner] if owner < len(owners) else ""
        return _Note(f"[Comment by {name}: " if name else "[Comment: ", text, "]")

    def _owners(self) -> list[str]:
        data, at, names = self._word.table(OWNERS), 0, []
        while at + 2 <= len(data):
            size = 2 * struct.unpack_from("<H", data, at)[0]
            names.append(data[at + 2 : at + 2 + size].decode("utf-16-le", "replace"))
            at += 2 + size
        return names

    def _story(self, part: str, start: int, end: int) -> str:
        """The text between two places of a part, on one line."""
        first, last = self._word.part(part)
        text = self._word.text(min(first + start, last), min(first + end, last))
        return one_line(_clean(self._plain_fields(text)))

    def _boxes(self) -> None:
        start, end = self._word.part("boxes")
        if start < end:
            self.draft.leave_headings()
        for line in re.split("[\r\x07\x0c]", self._plain_fields(self._word.text(start, end))):
            if text := _clean(line).strip():
                self.prose.plain(text)

    def _margins(self) -> None:
        texts = []
        places = self._word.positions(MARGINS, 0)
        for number in range(6, len(places) - 1):  # the first six are lines above notes
            kind = "footer" if (number - 6) % 6 in (2, 3, 5) else "header"
            first, last = self._word.part("margins")
            story = self._word.text(
                min(first + places[number], last), min(first + places[number + 1], last)
            )
            lines = re.split("[\r\x07]", self._plain_fields(story))
            texts += [(kind, _clean(line)) for line in lines]
        self.draft.leave_headings()
        for line in only_in_margins(texts, self.draft.text()):
            self.prose.plain(line)

    @staticmethod
    def _plain_fields(text: str) -> str:
        """Keep the results of fields, as NULs their codes: positions must hold."""
        for _ in range(8):  # fields within fields, from the inside
            text, count = _FIELD.subn(
                lambda found: (
                    "\0" * (found.start(1) - found.start()) + found[1] + "\0"
                    if found[1] is not None
                    else "\0" * len(found[0])
                ),
                text,
            )
            if not count:
                break
        return _LOOSE.sub(lambda found: "\0" * len(found[0]), text)


def _clean(text: str) -> str:
    return mend_halves(_NOTHING.sub("", text.translate(_SIGNS)))
