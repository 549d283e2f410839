"""XML of any kind: documents by their paragraphs and headings, data by records of `name: value` lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from epicrag.connectors.draft import Draft
from epicrag.connectors.json_scan import essence
from epicrag.connectors.records import Field, Records
from epicrag.connectors.xml_text import (
    Read,
    children,
    is_markup,
    lined,
    local,
    plain,
    words,
    write_words,
)

_PARAGRAPHS = {
    "p", "para", "paragraph", "simpara", "text", "l", "line", "li", "item", "entry", "note", "head",
    "heading", "title", "subtitle", "seg", "s", "span", "caption", "summary", "body", "content",
    "description", "abstract", "quote",
}  # fmt: skip
_HEADINGS = {"title", "head", "heading"}
_TELLING = {
    "title", "name", "label", "alt", "description", "content", "value", "text", "summary",
    "caption", "subject", "author",
}  # fmt: skip
_SENTENCE = re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}+\s++\S*[^\W\d_]{2,}")
_NO_TEXT = frozenset(
    {"style", "class", "href", "src", "type", "schemaLocation", "base", "d", "points"}
)
_LAYOUT = frozenset(
    {
        "width", "height", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "ry", "dx", "dy",
        "align", "valign", "color", "colour", "fill", "stroke", "font", "size", "space", "lang", "rend",
        "rendition", "role", "transform", "viewBox", "version", "noNamespaceSchemaLocation", "border",
        "margin", "padding", "cols", "rows", "colspan", "rowspan", "nil",
    }
)  # fmt: skip
_NUMBERS = re.compile(r"[\d\s.,;eE+-]+")
_LONG_NUMBERS = 200
_MAX_RECORD_CHARS = 4_000
_MAX_PARAGRAPH_CHARS = 4_000
_BESIDE = 200
_MAX_LOOKED_UP = 32
_MAX_TITLE_CHARS = 200


def write_any(draft: Draft, root: Any) -> Read:
    """Write the text of all elements, and of attributes that hold any."""
    writer = _Writer(draft)
    writer.run(root)
    return Read(writer.title)


class _Writer:
    """Walks the tree without recursion. Values that stand alone gather, and are written as one block."""

    def __init__(self, draft: Draft) -> None:
        self.title: str | None = None
        self._draft = draft
        self._records = Records(draft)
        self._fields: list[Field] = []
        self._repeated: dict[Any, frozenset[str]] = {}
        self._sections: dict[Any, bool] = {}

    def run(self, root: Any) -> None:
        import lxml.etree

        depth = 0
        walk = lxml.etree.iterwalk(root, events=("start", "end", "comment", "pi"))
        for event, node in walk:
            if event == "start":
                depth += 1
                if self._take(node, depth, node is root):
                    walk.skip_subtree()
            elif event == "end":
                if node is not root and children(node):
                    self._flush()
                    self._draft.enter(depth, "")  # its headings end with it
                depth -= 1
            if event != "start" and node is not root and node.tail and node.tail.strip():
                self._flush()
                self._paragraph([_field("", [(node.tail, _end_line(node))])])
        self._flush()

    def _take(self, node: Any, depth: int, is_root: bool) -> bool:
        """Write an element, or only what it has of its own; True when all below it is written too."""
        inner = children(node)
        if not inner:
            self._leaf(node, depth)
            return True
        if not is_root and self._is_record(node):
            self._flush()
            self._records.write(_fields(node), level=depth)
            return True
        self._flush()
        self._fields += _attributes(node, "")
        if not _has_own_text(node):
            return False
        if _is_short(node):
            self._flush()
            self._draft.open("paragraph")
            write_words(self._draft, node)
            self._draft.close()
            return True
        if node.text and node.text.strip():
            self._paragraph([_field("", [(node.text, node.sourceline or 1)])])
        return False

    def _leaf(self, node: Any, depth: int) -> None:
        name = local(node)
        text = words(node)
        self._fields += _attributes(node, "")
        if not text:
            return
        if name in _HEADINGS and self._is_heading(node) and len(text) <= _MAX_TITLE_CHARS:
            self._flush()
            self._draft.open("heading")
            write_words(self._draft, node)
            self._draft.close(max(depth - 1, 1))
            if self.title is None and depth <= 3:
                self.title = text
        elif name in _PARAGRAPHS:
            self._flush()
            self._paragraph([_value(node, "")])
        else:
            self._fields.append(_value(node, name))

    def _is_heading(self, node: Any) -> bool:
        """Does a title stand above paragraphs or parts, not among the fields of a record?"""
        parent = node.getparent()
        if parent is None:
            return False
        if parent not in self._sections:
            self._sections[parent] = any(
                next(iter(child), None) is not None or local(child) in _PARAGRAPHS - _HEADINGS
                for child in islice(parent, _BESIDE)
                if isinstance(child.tag, str)
            )
        return self._sections[parent]

    def _is_record(self, node: Any) -> bool:
        """Is it one of several alike, short, and made of values rather than of text?"""
        parent = node.getparent()
        if parent not in self._repeated:
            names = Counter(local(child) for child in children(parent))
            self._repeated[parent] = frozenset(name for name, count in names.items() if count > 1)
        if local(node) not in self._repeated[parent] or not _is_short(node, _MAX_RECORD_CHARS):
            return False
        return not any(
            _has_own_text(inner) if children(inner) else local(inner) in ("p", "para", "simpara")
            for inner in node.iter()
            if isinstance(inner.tag, str)
        )

    def _flush(self) -> None:
        if self._fields:
            fields, self._fields = self._fields, []
            self._paragraph(fields)

    def _paragraph(self, fields: list[Field]) -> None:
        """Write values as a block, under the heading that is in force."""
        draft = self._draft
        draft.open("paragraph")
        for at, field in enumerate(fields):
            if at:
                draft.write_exact("\n")
            field.write(draft)
        draft.close()


def _fields(record: Any) -> list[Field]:
    """The values of a record, each with the path that leads to it."""
    import lxml.etree

    fields = _attributes(record, "")
    path: list[str] = []
    for event, node in lxml.etree.iterwalk(record, events=("start", "end")):
        if node is record or not isinstance(node.tag, str):
            continue
        if event == "end":
            path.pop()
            continue
        path.append(local(node))
        name = ".".join(path)
        fields += _attributes(node, name)
        if not children(node) and (field := _value(node, name)).value:
            fields.append(field)
    return fields


def _attributes(node: Any, path: str) -> list[Field]:
    """Attributes that hold text; all of them where an element holds nothing else. A paragraph's own say
    how it looks and where it is linked from: of them those that read as text."""
    inner = children(node)
    bare = not inner and not words(node)
    is_data = local(node) not in _PARAGRAPHS or (inner and not _has_own_text(node))
    found = []
    for key, value in _items(node):
        name = key.rpartition("}")[2]
        text = " ".join(plain(value).split())
        telling = name.lower() in _TELLING or _SENTENCE.search(text) is not None
        told = is_data and name not in _LAYOUT and any(map(str.isalnum, text))
        if text and name not in _NO_TEXT and (bare or telling or told):
            found.append(Field(f"{path}.{name}" if path else name, text, node.sourceline))
    return found


def _items(node: Any) -> Iterable[tuple[str, str]]:
    """The attributes of an element. lxml looks for each value among all of them: the square of many."""
    if len(node.attrib) <= _MAX_LOOKED_UP:
        return node.attrib.items()  # type: ignore[no-any-return]
    return ((value.attrname, str(value)) for value in node.xpath("@*"))


def _value(node: Any, path: str) -> Field:
    """A leaf's text, HTML within taken out."""
    pieces = list(lined(node))
    text = "".join(piece for piece, _ in pieces)
    if len(text) > _LONG_NUMBERS and _NUMBERS.fullmatch(text):
        text = essence(f"[{text}]")  # the outline of a place on a map
        return Field(path, text, node.sourceline, _ends(text, pieces))
    if is_markup(text):
        shown = " ".join(plain(text).split())
        return Field(path, shown, node.sourceline, _ends(shown, pieces))
    return _field(path, pieces)


def _field(path: str, pieces: Iterable[tuple[str, int]]) -> Field:
    """Text on one line, of pieces of the source and the lines they begin on."""
    shown: list[tuple[int, str]] = []
    is_apart = False
    for text, first in pieces:
        for line, row in enumerate(text.split("\n"), first):
            if words := " ".join(row.split()):
                is_apart = is_apart or line != first or row[0].isspace()
                shown.append((line, f" {words}" if shown and is_apart else words))
                is_apart = row[-1].isspace()
            else:
                is_apart = is_apart or bool(row)
        is_apart = is_apart or text[-1:].isspace()
    value = "".join(words for _, words in shown)
    begin = shown[0][0] if shown else None
    return Field(path, value, begin, tuple(shown) if len(shown) > 1 else ())


def _ends(shown: str, pieces: list[tuple[str, int]]) -> tuple[tuple[int, str], ...]:
    """What is told of a text instead of it, from its first line to its last."""
    first, last = _field("", pieces[:1]).line, _field("", pieces[-1:])
    end = last.pieces[-1][0] if last.pieces else last.line
    if len(shown) < 2 or first is None or end is None or first == end:
        return ()
    return (first, shown[:-1]), (end, shown[-1:])


def _end_line(node: Any) -> int:
    """The source line on which what stands behind an element begins."""
    n_lines = 0
    while len(node):
        node = node[-1]
        n_lines += (node.tail or "").count("\n")
    return (node.sourceline or 1) + (node.text or "").count("\n") + n_lines


def _has_own_text(node: Any) -> bool:
    """Is there text right in it, beside its elements?"""
    if node.text and node.text.strip():
        return True
    return any(child.tail and child.tail.strip() for child in node)


def _is_short(node: Any, most: int = _MAX_PARAGRAPH_CHARS) -> bool:
    n_chars = 0
    for count, inner in enumerate(node.iter()):
        n_chars += len(inner.text or "") + len(inner.tail or "")
        if n_chars > most or count > most:
            return False
    return True
