"""JSON and JSON lines: each record a block of `name: value` lines, at the source line where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from epicrag.connectors.base import Parsed
from epicrag.connectors.draft import Draft
from epicrag.connectors.graft import graft
from epicrag.connectors.json_scan import BrokenJsonError, Scanner, scan
from epicrag.connectors.records import Field, Records
from epicrag.connectors.text import parse_text

if TYPE_CHECKING:
    from epicrag.connectors.json_scan import Event

_MAX_JOINED = 60
_MAX_PATH = 200
_MAX_KEYS = 40
_MAX_TITLE = 200
_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]{512,}={0,2}\s*")
_DATA_URI = re.compile(r"data:([\w.+/-]+)?[\w=;.-]*;base64,")


def parse_json(text: str, encoding: str | None = None) -> Parsed:
    """Read JSON, or values of it one after the other. What is not JSON, or breaks off, is read as the text
    it is from there on: people can read it, and so can a model."""
    if _is_json_lines(text):
        return parse_json_lines(text, encoding)
    writer = _Writer(text)
    at = _start(text, 0)
    try:
        while at < len(text):
            at = _start(text, writer.value(at))
    except BrokenJsonError:
        if not writer.draft.length:
            return replace(parse_text(text, encoding), media="application/json")
        writer.raw(writer.written, len(text))
    return writer.parsed("application/json", encoding)


def parse_json_lines(text: str, encoding: str | None = None) -> Parsed:
    """Read one value a line, each a record. A line that is no JSON is kept as text."""
    first = text.lstrip().partition("\n")[0]
    if first and not _is_whole(first) and not _is_whole(text.strip().rpartition("\n")[2]):
        return parse_json(text, encoding)  # one value over many lines, under the wrong name
    writer = _Writer(text)
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if (line := text[start:end]).strip():
            try:
                writer.record(line, start)
            except BrokenJsonError:
                writer.raw(start, end)
        start = end + 1
    return writer.parsed("application/x-ndjson", encoding)


def _start(text: str, at: int) -> int:
    """The next character that is not white space."""
    while at < len(text) and text[at] in " \t\n\r\ufeff":
        at += 1
    return at


def _is_json_lines(text: str) -> bool:
    """Are the first two lines that hold something a whole object each?"""
    first, _, rest = text.lstrip("\ufeff \n").partition("\n")
    second = rest.lstrip("\n ").partition("\n")[0]
    return first[:1] == second[:1] == "{" and _is_whole(first) and _is_whole(second)


def _is_whole(line: str) -> bool:
    try:
        *_, end = scan(line, _start(line, 0))
    except BrokenJsonError:
        return False
    return not line[end.at :].strip()


class _Line(NamedTuple):
    """`path: value`, and the offset at which it stands in the source."""

    at: int
    path: str
    value: str
    key_at: int | None = None
    """Where the first key of the path stands that no line above has."""
    parts: tuple[tuple[int, str], ...] = ()
    """The pieces of a joined value, each with its offset."""


@dataclass(slots=True)
class _Frame:
    """An array or object that is open."""

    kind: Literal["{", "["]
    path: str
    at: int
    key: str = ""
    key_at: int | None = None
    """Where the key stands, until a line has it."""
    index: int = -1
    plain: list[Event] = field(default_factory=list)
    """An array's values so far, while it holds no arrays and objects: it may fit on a line."""

    def child(self) -> str:
        """The path of the value that comes next."""
        if self.kind == "[":
            return f"{self.path}[{self.index}]"
        return f"{self.path}.{self.key}" if self.path else self.key


class _Writer:
    """Turns events into blocks. Objects in arrays are records; what stands around them is written too."""

    def __init__(self, text: str) -> None:
        self.draft = Draft()
        self.written = 0
        """Up to this offset of the source everything is in the draft."""
        self.title: str | None = None
        self._text = text
        self._scanner = Scanner(text)
        self._lines: list[_Line] = []
        self._stack: list[_Frame] = []
        self._record_depth = 0  # 0: within no record
        self._container = ""  # the array that the record stands in
        self._records = Records(self.draft)
        self._line, self._counted = 1, 0

    def value(self, at: int) -> int:
        """Write the value that begins at `at`; return where it ends."""
        end = at
        for event in self._scanner.run(at):
            end = event.at
            self._take(event, 0)
        self._flush(end)
        return end

    def record(self, line: str, offset: int) -> None:
        """Write a line of JSON lines, as one record."""
        events = list(scan(line, _start(line, 0)))
        if line[events[-1].at :].strip():
            raise BrokenJsonError(events[-1].at)
        self._record_depth = -1  # within a record, whatever the depth
        for event in events:
            self._take(event, offset)
        self._record_depth = 0
        self._flush(offset + len(line), record=True)

    def raw(self, start: int, end: int) -> None:
        """Write a stretch of the source as it stands, in place of what was not yet written of it."""
        self._lines, self._stack, self._record_depth = [], [], 0
        self.draft.enter(1, "")
        graft(self.draft, parse_text(self._text[start:end]), line=self._line_of(start))
        self.written = end

    def parsed(self, media: str, encoding: str | None) -> Parsed:
        draft = self.draft
        return draft.parsed(
            media,
            title=self.title,
            encoding=encoding,
        )

    def _take(self, event: Event, offset: int) -> None:
        """Take one event in; `offset` is where its text begins in the source."""
        kind = event.kind
        top = self._stack[-1] if self._stack else None
        if kind == "key" and top is not None:
            top.key = event.text
            top.key_at = event.at + offset
        elif kind == "{" or kind == "[":
            self._open(kind, top, event.at + offset)
        elif kind == "}" or kind == "]":
            self._close(event.at + offset)
        elif kind != "end":
            if offset:
                event = event._replace(at=event.at + offset)
            self._value(event, top)

    def _open(self, kind: Literal["{", "["], top: _Frame | None, at: int) -> None:
        path = ""
        if top is not None:
            if top.kind == "[":
                self._spread(top)
                top.index += 1
            path = top.child()
            if not self._record_depth and (top.kind == "[" or kind == "{"):
                self._flush(at)
                if top.kind == "[":  # within a record, paths begin anew
                    self._record_depth, self._container, path = len(self._stack) + 1, top.path, ""
                    self._first_key()  # its keys are above all records
        if (
            len(path) > _MAX_PATH
        ):  # paths of a thousand steps help nobody, and cost the square of it
            path = "…" + path[-_MAX_PATH // 2 :]
        self._stack.append(_Frame(kind, path, at))

    def _close(self, at: int) -> None:
        frame = self._stack.pop()
        depth = len(self._stack) + 1
        if frame.plain:
            self._join(frame)
        elif frame.kind == "{" and not frame.key and self._stack and self._stack[-1].kind == "{":
            self._append(_Line(frame.at, frame.path, "{}"))  # its name may be all there is to say
        if depth == self._record_depth:
            self._record_depth = 0
            self._flush(at + 1, record=True)
        elif not self._record_depth and frame.kind == "{":
            self._flush(at + 1)

    def _value(self, event: Event, top: _Frame | None) -> None:
        if not event.text:
            if top is not None and top.kind == "[":
                top.index += 1
            return
        if event.is_string:
            event = event._replace(text=_condensed(event.text))
        if top is None:
            self._append(_Line(event.at, "", event.text))
        elif top.kind == "[" and (top.plain or top.index < 0):
            top.plain.append(event)
        else:
            top.index += 1
            self._add(_Line(event.at, top.child(), event.text), is_string=event.is_string)

    def _append(self, line: _Line) -> None:
        self._lines.append(line._replace(key_at=self._first_key()))

    def _first_key(self) -> int | None:
        """Where the first of the open keys stands that no line has yet; all are taken now."""
        first = None
        for frame in self._stack[-_MAX_KEYS:]:
            if frame.key_at is not None:
                first = frame.key_at if first is None else first
                frame.key_at = None
        return first

    def _add(self, line: _Line, *, is_string: bool) -> None:
        self._append(line)
        if line.path == "title" and is_string and not self._record_depth and self.title is None:
            title = " ".join(line.value.split())
            self.title = title if title and len(title) <= _MAX_TITLE else None

    def _spread(self, frame: _Frame) -> None:
        """An array turned out to hold more than plain values: each gets a line."""
        for event in frame.plain:
            frame.index += 1
            self._append(_Line(event.at, frame.child(), event.text))
        frame.plain = []

    def _join(self, frame: _Frame) -> None:
        """Write an array of plain values: short ones on one line, texts on a line each."""
        values = frame.plain
        if all(len(event.text) <= _MAX_JOINED and "\n" not in event.text for event in values) and (
            frame.path or self._record_depth
        ):
            between = ", " if frame.path else " | "
            parts = [(event.at, between + event.text) for event in values]
            parts[0] = (values[0].at, values[0].text)
            joined = "".join(text for _, text in parts)
            self._append(_Line(frame.at, frame.path, joined, parts=tuple(parts)))
        elif frame.path:
            self._spread(frame)
        else:
            self._lines += [_Line(event.at, "", event.text) for event in values]

    def _flush(self, end: int, *, record: bool = False) -> None:
        """Write the lines collected so far as blocks; the source up to `end` is done with."""
        lines, self._lines = self._lines, []
        self.written = max(self.written, end)
        fields = [self._field(line) for line in lines]
        container = self._container if record else ""
        self._records.write(fields, container=container, is_record=record)

    def _field(self, line: _Line) -> Field:
        first = self._line_of(line.at if line.key_at is None else line.key_at)
        parts = line.parts or ((line.at, line.value),)
        pieces = tuple((self._line_of(at), text) for at, text in parts)
        return Field(line.path, line.value, first, pieces if pieces[-1][0] != first else ())

    def _line_of(self, at: int) -> int:
        """The source line of an offset; offsets come in order, but for the heads of arrays."""
        if at < self._counted:
            self._line -= self._text.count("\n", at, self._counted)
        else:
            self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line


def _condensed(text: str) -> str:
    """Tell of bytes in base64 how many there are: as text they mean nothing."""
    if len(text) < 512:
        return text
    if uri := _DATA_URI.match(text):
        return f"({uri[1] or 'data'}, {len(text):,} characters)"
    is_base64 = _BASE64.fullmatch(text) and re.search("[a-z]", text) and re.search("[A-Z]", text)
    if is_base64 and re.search(r"\d", text) and len("".join(text.split())) % 4 == 0:
        longest = max(map(len, text.split()))
        return f"(base64, {len(text):,} characters)" if longest >= 60 else text
    return text
