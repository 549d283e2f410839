"""XML as a tree, safely: nothing is fetched, entities are counted before they are put in, repairs are made."""

from __future__ import annotations

import html.entities
import re
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from epicrag.types import Unread

_PROLOG = re.compile(r"(?:\s|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE\b", re.DOTALL)
_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_DOCTYPE_PART = re.compile(r"\"[^\"]*\"|'[^']*'|<!--.*?(?:-->|\Z)|\[|\]|>", re.DOTALL)
_ENTITY = re.compile(
    r"<!ENTITY\s+(?!%)([\w:.-]+)\s+(?:\"([^\"]*)\"|'([^']*)'|(?:SYSTEM|PUBLIC)\b)", re.DOTALL
)
_REFERENCE = re.compile(r"&(?:([A-Za-z_:][\w:.-]*+);|(?!#))")
_OWN = frozenset({"amp", "lt", "gt", "quot", "apos"})
_HARMLESS = 1_000_000
_MAX_GROWTH = 10
_MAX_NESTED = 50


def parse_tree(text: str) -> Any | Unread | None:
    """Parse XML; the root element, None when there is none, `Unread` when it is a trap or nested too deep.

    The document type is taken out and its own entities are put in here, so that the parser below never
    sees either: external entities are nothing, unknown ones stay as they are written, those of HTML are
    known. Source lines remain those of the file. What is not well-formed is read as far as it can be.
    """
    import lxml.etree

    text, entities = _without_doctype(text)
    resolved = _resolve(text, entities)
    if isinstance(resolved, Unread):
        return resolved
    data = resolved.encode("utf-8", "replace")
    options = {"encoding": "utf-8", "resolve_entities": False, "no_network": True}
    parser = lxml.etree.XMLParser(huge_tree=True, **options)
    try:
        return lxml.etree.fromstring(data, parser)
    except lxml.etree.XMLSyntaxError:
        parser = lxml.etree.XMLParser(huge_tree=True, recover=True, **options)
        try:
            root = lxml.etree.fromstring(data, parser)
        except lxml.etree.XMLSyntaxError:
            return None
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        return Unread("failed", "elements nested too deeply: what they hold cannot be read")
    return root


def _without_doctype(text: str) -> tuple[str, dict[str, str]]:
    """Blank out the XML declaration and the document type; return the entities the latter declares."""
    if declaration := _DECLARATION.match(text):
        text = _blank(text, 0, declaration.end())
    begin = _PROLOG.match(text)
    if begin is None:
        return text, {}
    start = text.index("<!DOCTYPE", begin.end() - len("<!DOCTYPE"))
    depth = 0
    for part in _DOCTYPE_PART.finditer(text, begin.end()):
        depth += {"[": 1, "]": -1}.get(part[0], 0)
        if part[0] == ">" and depth <= 0:
            return _blank(text, start, part.end()), _declared(text[start : part.end()])
    return text, {}


def _blank(text: str, start: int, end: int) -> str:
    return text[:start] + "\n" * text.count("\n", start, end) + text[end:]


def _declared(doctype: str) -> dict[str, str]:
    """The entities of a document type; external ones are nothing. The first declaration holds."""
    entities: dict[str, str] = {}
    for name, double, single in _ENTITY.findall(doctype):
        entities.setdefault(name, " ".join((double or single).split("\n")))
    return entities


def _resolve(text: str, entities: dict[str, str]) -> str | Unread:
    """Put entities in, unless they would make far more of the text than it is."""
    sizes: dict[str, float] = {}
    growth = 0.0
    pieces: list[str] = []
    for start, end, is_markup in _stretches(text):
        piece = text[start:end]
        if is_markup and "&" in piece:
            for name in _REFERENCE.findall(piece) if entities else ():
                growth += _size(name, entities, sizes) if name in entities else 0
            if growth > max(_HARMLESS, _MAX_GROWTH * len(text)):
                return Unread(
                    "failed",
                    "an XML bomb: its entities would unfold to "
                    + (f"{growth:,.0f} characters" if growth < 1e30 else "no end of characters")
                    + ", refused",
                )
            piece = _REFERENCE.sub(lambda found: _value(found[1], entities), piece)
        pieces.append(piece)
    return "".join(pieces)


def _stretches(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the stretches of a text: CDATA sections as they stand, and what is between them."""
    start = 0
    while (begin := text.find("<![CDATA[", start)) >= 0:
        end = text.find("]]>", begin)
        if end < 0:
            break
        yield start, begin, True
        yield begin, end + 3, False
        start = end + 3
    yield start, len(text), True


def _size(name: str, entities: dict[str, str], sizes: dict[str, float], nested: int = 0) -> float:
    """The characters that an entity unfolds to; infinity when it holds itself."""
    if name in sizes:
        return sizes[name]
    if nested > _MAX_NESTED:
        return float("inf")
    value = entities[name]
    inner = [other for other in _REFERENCE.findall(value) if other in entities]
    size = len(value) + sum(_size(other, entities, sizes, nested + 1) for other in inner)
    sizes[name] = size
    return size


def _value(name: str | None, entities: dict[str, str]) -> str:
    """What stands for a reference; a lone ampersand is one."""
    if not name:
        return "&amp;"
    if name in _OWN:
        return f"&{name};"
    if name in entities:
        return _REFERENCE.sub(lambda found: _value(found[1], entities), entities[name])
    known = html.entities.html5.get(f"{name};")
    return escape(known) if known is not None else f"&amp;{name};"
