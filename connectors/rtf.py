"""Rich Text: groups, code pages and escapes to paragraphs, headings, lists, tables and notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing
from epicrag.connectors.margins import only_in_margins
from epicrag.connectors.properties import metadata
from epicrag.connectors.prose import Prose
from epicrag.connectors.rows import one_line
from epicrag.connectors.rtf_words import (
    CHARSETS,
    ENTERED,
    LEFT_OUT,
    MARGINS,
    SIGNS,
    codec_of,
)
from epicrag.connectors.tables import TableCell, TableRow, write_table
from epicrag.types import Unread

_TOKEN = re.compile(
    rb"\\(?:(?P<word>[A-Za-z]{1,32})(?P<number>-?\d{1,10})? ?|'(?P<hex>[0-9A-Fa-f]{2})|(?P<sign>[^A-Za-z]))"
    rb"|(?P<brace>[{}])|[\r\n\0]+|(?P<text>[^\\{}\r\n\0]+)|\\",
    re.DOTALL,
)
_BULLETS = re.compile(r"[·•●▪■□o§\-–*‣◦➢✓\uf0b7\uf0a7\uf0d8\uf0fc]?")
_CONTENTS = re.compile(r"toc \d|contents \d|table of figures")
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_TABLE_WORDS = frozenset(["cell", "nestcell", "row", "nestrow", "trhdr", "intbl", "trowd"])
_MAX_GROUPS = 5_000
_TOKENS_A_CHECK = 10_000


@refusing
def parse_rtf(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a Rich Text file. Hidden and deleted text, pictures and tables of contents are left out."""
    bare = data.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if not data:
        return Unread("failed", "0 bytes: an empty file, not Rich Text")
    if not bare.startswith(b"{\\rtf"):
        reason = "not Rich Text: its first bytes are not those of one; name it as what it is"
        return Unread("failed", reason)
    reader = _Reader(limits)
    if not reader.run(bare):
        return Unread("failed", "cut off: it ends within a group; copy or download it again")
    return reader.prose.parsed("application/rtf", metadata(reader.info), reader.codec)


@dataclass(slots=True)
class _Sink:
    """Where text goes: the body, a note, the name of a font …"""

    kind: str
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(slots=True)
class _Style:
    name: str = ""
    level: int | None = None


@dataclass(slots=True)
class _State:
    """What a group may change, and its end restores."""

    sink: _Sink
    codec: str = "cp1252"
    skip: int = 1
    """Characters behind an escape in Unicode that stand for it in old readers."""
    hidden: bool = False
    left_out: bool = False
    font: int = -1
    style: int = 0
    level: int | None = None
    depth: int = 0
    in_table: bool = False
    alternative: bool = False
    """Within `\\upr`: the first group is for readers that know no Unicode."""


class _Reader:
    """Goes through the tokens once; groups are a stack, never a recursion."""

    def __init__(self, limits: Limits) -> None:
        self._watch = Watch(limits)
        self._body = _Sink("body")
        self._state = _State(self._body)
        self._stack: list[_State] = []
        self._bytes = bytearray()
        self._to_skip = 0
        self._high = 0  # the first half of a character beyond the first 65,536
        self._starred = False
        self._fonts: dict[int, str] = {}
        self._styles: dict[int, _Style] = {}
        self._defined = -1  # the font or style that is being defined
        self._mark: str | None = None
        self._notes: list[tuple[str, str]] = []
        self._counts = {"footnote": 0, "endnote": 0}
        self._author = ""
        self._cells: list[str] = []
        self._rows: list[TableRow] = []
        self._is_head = False
        self._margins: list[tuple[str, str]] = []
        self._date: dict[str, int] = {}
        self.codec = "cp1252"
        self.info: dict[str, str | None] = {}
        self.prose = Prose()
        self.draft = self.prose.draft

    def run(self, data: bytes) -> bool:
        """Read all; False where the end is missing."""
        at, count = 0, 0
        while at < len(data) and (token := _TOKEN.match(data, at)):
            at = token.end()
            count += 1
            if count % _TOKENS_A_CHECK == 0:
                self._watch.check(self.draft.length)
            if text := token["text"]:
                self._raw(text)
            elif token["hex"]:
                self._raw(bytes([int(token["hex"], 16)]))
            elif token["brace"]:
                self._flush()
                self._to_skip = 0
                if token["brace"] == b"{":
                    self._open()
                elif self._stack:
                    self._close()
                    if not self._stack:
                        break
            elif word := token["word"]:
                number = int(token["number"]) if token["number"] else None
                if word == b"bin":
                    at += max(number or 0, 0)
                elif self._to_skip and word != b"u":
                    self._to_skip -= 1
                else:
                    self._flush()
                    self._word(word.decode("ascii"), number)
                    self._starred = False
            elif token["sign"]:
                self._sign(token["sign"])
        self._flush()
        whole = not self._stack
        self._finish()
        return whole

    # --- groups ---

    def _open(self) -> None:
        if len(self._stack) > _MAX_GROUPS:
            reason = f"damaged: more than {_MAX_GROUPS:,} groups within each other"
            raise RefusedError(Unread("failed", reason))
        self._stack.append(self._state)
        state = replace(self._state)
        if state.alternative:  # the first group within \upr
            state.left_out = True
            self._state.alternative = False
        state.alternative = False
        self._state = state
        self._starred = False

    def _close(self) -> None:
        ended = self._state
        self._state = self._stack.pop()
        if ended.sink is not self._state.sink:
            self._end_sink(ended.sink)
        # What is set for a paragraph outlives the group it is set in.
        if ended.sink is self._state.sink and not ended.left_out:
            self._state.style, self._state.level = ended.style, ended.level
            self._state.depth, self._state.in_table = ended.depth, ended.in_table

    def _into(self, kind: str) -> None:
        self._state.sink = _Sink(kind)
        self._state.left_out = False

    def _end_sink(self, sink: _Sink) -> None:
        """Do with what a group held what is to be done."""
        text = sink.text
        kind, _, name = sink.kind.partition(":")
        if kind == "info":
            self.info[name] = text.strip()
        elif kind == "author":
            self._author = one_line(text)
        elif kind == "mark":
            if self._mark is None:
                self._mark = "-" if _BULLETS.fullmatch(text.strip()) else text.strip()
        elif kind in ("footnote", "endnote"):
            self._counts[kind] += 1
            label = f"{kind} {self._counts[kind]}"
            self._put(f" ({label})")
            self._notes.append((f"{label.capitalize()}: ", one_line(text)))
        elif kind == "comment" and text.strip():
            by = f" by {self._author}" if self._author else ""
            self._notes.append((f"[Comment{by}: ", f"{one_line(text)}]"))
        elif kind == "box":
            self._notes.append(("", text.strip()))
        elif kind == "margin":
            self._margins += [(name, line) for line in text.split("\n") if line.strip()]

    # --- words ---

    def _word(self, word: str, number: int | None) -> None:
        state = self._state
        if word in SIGNS:
            self._put(SIGNS[word])
        elif word == "u":
            self._unicode(number or 0)
        elif word == "uc":
            state.skip = min(max(number or 0, 0), 1_000)
        elif word in LEFT_OUT or (self._starred and word not in ENTERED):
            state.left_out = True
        elif word in ("v", "deleted", "htmlrtf"):
            state.hidden = number != 0
        elif word == "plain":
            state.hidden = False
            self._set_font(self._defined if state.sink.kind == "fonts" else 0)
        elif word == "f":
            self._font(number or 0)
        elif not self._table(word) and not self._paragraph(word, number):
            self._destination(word, number)

    def _table(self, word: str) -> bool:
        """Do what a word about tables says."""
        state = self._state
        if word in _TABLE_WORDS and state.left_out:
            return True
        if word == "intbl":
            state.in_table = True
        elif word == "trowd":
            self._is_head = False
        elif word == "trhdr":
            self._is_head = True
        elif word == "cell" and state.sink is self._body:
            self._cells.append(one_line(self._body.text))
            self._body.parts.clear()
            self._mark = None
        elif word == "row" and state.sink is self._body:
            if self._cells:
                self._rows.append(
                    TableRow([TableCell(text) for text in self._cells], self._is_head)
                )
            self._cells = []
        elif word == "nestcell":
            self._put(", ")
        elif word == "nestrow":
            self._put("; ")
        else:
            return False
        return True

    def _paragraph(self, word: str, number: int | None) -> bool:
        """Do what a word about paragraphs says."""
        state = self._state
        if word in ("par", "sect", "page", "column"):
            self._end_paragraph()
        elif word == "pard":
            state.style, state.level, state.depth, state.in_table = 0, None, 0, False
        elif word == "s" and state.sink.kind not in ("style", "styles"):
            state.style = number or 0
        elif word == "outlinelevel" and state.sink.kind not in ("style", "styles"):
            state.level = number
        elif word == "ilvl":
            state.depth = min(max(number or 0, 0), 8)
        else:
            return False
        return True

    def _destination(self, word: str, number: int | None) -> None:
        """Do what a word says about where text goes, and about the file as a whole."""
        state = self._state
        kind = state.sink.kind
        if word == "ansicpg" and number:
            self._set_codec(codec_of(number))
        elif word in ("mac", "pc", "pca"):
            self._set_codec({"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}[word])
        elif word == "fonttbl":
            self._into("fonts")
        elif word == "stylesheet":
            self._into("styles")
        elif kind in ("fonts", "style", "styles"):
            self._define(word, number)
        elif word == "info":
            self._into("nothing")
        elif kind == "nothing" and word in ("title", "author", "subject", "keywords"):
            self._into(f"info:{word}")
        elif word in ("creatim", "revtim") and number is None:
            self._date = {}
        elif word in ("yr", "mo", "dy") and number is not None:
            self._date[word] = number
            if word == "dy" and {"yr", "mo"} <= self._date.keys():
                self._date_known()
        elif state.left_out:
            return
        elif word == "footnote":
            self._into("footnote")
        elif word == "ftnalt" and kind == "footnote":
            state.sink.kind = "endnote"
        elif word == "annotation":
            self._into("comment")
        elif word == "atnauthor":
            self._into("author")
        elif word in ("listtext", "pntext"):
            self._into("mark")
        elif word in ("shptxt", "dptxbxtext"):
            self._into("box")
        elif word == "upr":
            state.alternative = True
        elif word == "ud":
            state.left_out = False
        elif word in MARGINS:
            self._into(f"margin:{'header' if word.startswith('header') else 'footer'}")

    def _date_known(self) -> None:
        date = self._date
        self.info["date"] = f"{date['yr']:04}-{date['mo']:02}-{date['dy']:02}"

    # --- fonts and styles ---

    def _define(self, word: str, number: int | None) -> None:
        state = self._state
        if state.sink.kind == "fonts":
            if word == "fcharset" and number is not None:
                self._fonts[self._defined] = CHARSETS.get(number) or self.codec
            elif word == "cpg" and number:
                self._fonts[self._defined] = codec_of(number)
            return
        if word == "s":
            self._defined = number or 0
            self._into("style")
        elif word == "outlinelevel" and state.sink.kind == "style" and number is not None:
            self._styles.setdefault(self._defined, _Style()).level = number

    def _font(self, number: int) -> None:
        if self._state.sink.kind == "fonts":
            self._defined = number
            self._fonts.setdefault(number, self.codec)
        else:
            self._set_font(number)

    def _set_font(self, number: int) -> None:
        self._state.font = number
        self._state.codec = self._fonts.get(number, self.codec)

    def _set_codec(self, codec: str) -> None:
        self.codec = self._state.codec = codec

    def _style_name(self, text: str) -> None:
        """Take the name of a style: it ends with a semicolon."""
        style = self._styles.setdefault(self._defined, _Style())
        style.name = (style.name + text).split(";")[0].strip(" ")[:100]

    # --- text ---

    def _raw(self, text: bytes) -> None:
        """Take bytes; a character of a code page may be spread over escapes and plain bytes."""
        if self._to_skip:
            skipped = min(self._to_skip, len(text))
            self._to_skip -= skipped
            text = text[skipped:]
        self._bytes += text

    def _flush(self) -> None:
        if self._bytes:
            codec = self._state.codec
            self._put(_decoded(bytes(self._bytes), codec))
            self._bytes.clear()

    def _unicode(self, number: int) -> None:
        code = number & 0xFFFF
        self._to_skip = self._state.skip
        if 0xD800 <= code < 0xDC00:
            self._high = code
            return
        if 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((self._high - 0xD800) << 10) + code - 0xDC00 if self._high else 0xFFFD
        self._high = 0
        self._put(chr(code))

    def _sign(self, sign: bytes) -> None:
        if self._to_skip:
            self._to_skip -= 1
            return
        self._flush()
        if sign == b"*":
            self._starred = True
        elif sign in (b"\r", b"\n"):
            self._end_paragraph()
        elif sign in b"\\{}":
            self._put(sign.decode("ascii"))
        elif sign == b"~":
            self._put(" ")
        elif sign == b"_":
            self._put("-")
        elif sign == b"\t":
            self._put("\t")

    def _put(self, text: str) -> None:
        state = self._state
        if state.left_out or state.hidden or not text:
            return
        if state.sink.kind == "style":
            self._style_name(text)
        elif state.sink.kind not in ("fonts", "styles", "nothing"):
            state.sink.parts.append(text)

    # --- paragraphs ---

    def _end_paragraph(self) -> None:
        state = self._state
        if state.left_out:
            return
        if state.sink is not self._body:
            state.sink.parts.append("\n")
        elif state.in_table or self._cells:
            self._body.parts.append("\n")
        else:
            self._write_body()

    def _write_body(self) -> None:
        """Write the paragraph that has come together, and what hangs on it."""
        self._write_table()
        text = self._body.text.strip(" \n")
        self._body.parts.clear()
        mark, self._mark = self._mark, None
        self._watch.check(self.draft.length)
        style = self._styles.get(self._state.style, _Style())
        level = self._level(style)
        if text.strip() and not _CONTENTS.fullmatch(style.name.lower()):
            self.prose.text(text, level, mark, self._state.depth)
        self._tell()

    def _level(self, style: _Style) -> int | None:
        if style.name.lower() == "title":
            return 0
        level = self._state.level if self._state.level is not None else style.level
        if level is None and (found := _HEADING.fullmatch(style.name)):
            return int(found[1])
        return level + 1 if level is not None and 0 <= level < 9 else None

    def _write_table(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self.prose.end_list()
            if all(len(row.cells) == 1 for row in rows):
                for row in rows:
                    if row.cells[0].text:
                        self.prose.plain(row.cells[0].text)
            else:
                write_table(self.draft, rows, self._watch)
            self._tell()

    def _tell(self) -> None:
        notes, self._notes = self._notes, []
        for label, text in notes:
            if text:
                self.prose.plain(label + text)

    def _finish(self) -> None:
        if self._cells:
            self._rows.append(TableRow([TableCell(text) for text in self._cells]))
            self._cells = []
        self._write_body()
        self.draft.leave_headings()
        for line in only_in_margins(self._margins, self.draft.text()):
            self.prose.plain(line)


def _decoded(data: bytes, codec: str) -> str:
    if codec == "symbol":
        return data.decode("latin-1").replace("\xb7", "•")
    return data.decode(codec, "replace")
