"""Styles and numbering of Word files: which paragraphs are headings, and what stands before list items."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_VAL = f"{W}val"
_HEADING = re.compile(
    r"(?:heading|überschrift|berschrift|titre|t[íi]tulo|titolo|rubrik|overskrift|kop|otsikko|nagłówek|nagwek"
    r"|nadpis|заголовок|标题|標題|見出し|제목|başlık|balk)[ _-]?(\d)",
    re.IGNORECASE,
)
_BODY = 9
"""The outline level of text that is no heading."""


@dataclass(slots=True)
class Style:
    """A paragraph style, as far as it matters: each field may be inherited."""

    name: str
    based_on: str | None = None
    level: int | None = None
    number: tuple[str, int] | None = None
    hidden: bool = False


class Styles:
    """The styles of a document, looked up once each."""

    def __init__(self, root: Any) -> None:
        self._styles: dict[str, Style] = {}
        self.default: str | None = None
        for node in root.findall(f"{W}style") if root is not None else ():
            style_id = node.get(f"{W}styleId", "")
            self._styles[style_id] = _style(node)
            if node.get(f"{W}default") in ("1", "true", "on") and node.get(f"{W}type") in (
                None,
                "paragraph",
            ):
                self.default = style_id
        self._resolved: dict[str, _Resolved] = {}

    def name(self, style_id: str | None) -> str:
        """The name of a style in lower case; its id where it is not defined."""
        style = self._styles.get(style_id or "")
        return (style.name if style else style_id or "").lower()

    def level(self, style_id: str | None) -> int | None:
        """The level that the style gives a heading, from 1; 0 for a document's title; else None."""
        if style_id is not None and style_id not in self._styles:
            found = _HEADING.fullmatch(style_id)
            return int(found[1]) if found else None
        return self._resolve(style_id).level

    def number(self, style_id: str | None) -> tuple[str, int] | None:
        """The list that the style puts its paragraphs in: (number id, level)."""
        return self._resolve(style_id).number

    def is_hidden(self, style_id: str | None) -> bool:
        """Is text of this style hidden?"""
        return self._resolve(style_id).hidden

    def _resolve(self, style_id: str | None) -> _Resolved:
        """What a style says, and those it is based on where it says nothing. Each is looked at once; a
        circle ends."""
        chain: dict[str, Style] = {}
        while style_id in self._styles and style_id not in chain and style_id not in self._resolved:
            chain[style_id] = self._styles[style_id]
            style_id = chain[style_id].based_on
        found = self._resolved.get(style_id or "", _Resolved())
        for own, style in reversed(chain.items()):
            is_said, level = _own_level(style)
            found = _Resolved(
                level if is_said else found.level,
                style.number or found.number,
                style.hidden or found.hidden,
            )
            self._resolved[own] = found
        return found


class _Resolved(NamedTuple):
    """A style with all that it inherits."""

    level: int | None = None
    number: tuple[str, int] | None = None
    hidden: bool = False


def _own_level(style: Style) -> tuple[bool, int | None]:
    """Does a style itself say which heading it is, and which: 0 for the title, None for none?"""
    if style.name.lower() == "title":
        return True, 0
    if style.level is not None:
        return True, style.level + 1 if style.level < _BODY else None
    found = _HEADING.fullmatch(style.name)
    return found is not None, int(found[1]) if found else None


def _style(node: Any) -> Style:
    style = Style(name=_value(node, "name") or node.get(f"{W}styleId", ""))
    style.based_on = _value(node, "basedOn")
    properties = node.find(f"{W}pPr")
    if properties is not None:
        style.level = as_int(_value(properties, "outlineLvl"))
        style.number = number_of(properties)
    run = node.find(f"{W}rPr")
    style.hidden = run is not None and is_on(run.find(f"{W}vanish"))
    return style


def number_of(properties: Any) -> tuple[str, int] | None:
    """The list of a paragraph or style, from its `pPr`; number id "0" takes it out of any."""
    node = properties.find(f"{W}numPr")
    if node is None or (number := _value(node, "numId")) is None:
        return None
    return number, min(max(as_int(_value(node, "ilvl")) or 0, 0), 8)


def is_on(node: Any) -> bool:
    """Is a switch such as `<w:vanish/>` there, and on?"""
    return node is not None and node.get(_VAL, "1") not in ("0", "false", "off", "none")


def as_int(text: str | None) -> int | None:
    """A number, where it is one."""
    return int(text) if text and re.fullmatch(r"-?\d{1,9}", text) else None


def _value(node: Any, name: str) -> str | None:
    child = node.find(W + name)
    return child.get(_VAL) if child is not None else None


# --- numbering -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Level:
    format: str
    text: str
    start: int


@dataclass(slots=True)
class _Count:
    """How far a list has been counted, level by level."""

    at: list[int | None] = field(default_factory=lambda: [None] * 9)


class Numbers:
    """The lists of a document: tells what stands before each item, in reading order."""

    def __init__(self, root: Any) -> None:
        self._abstract: dict[str, dict[int, _Level]] = {}
        self._lists: dict[str, tuple[str, dict[int, _Level]]] = {}
        self._counts: dict[str, _Count] = {}
        if root is None:
            return
        for node in root.findall(f"{W}abstractNum"):
            self._abstract[node.get(f"{W}abstractNumId", "")] = _levels(node)
        for node in root.findall(f"{W}num"):
            self._add(node)

    def mark(self, number: str, level: int) -> str | None:
        """The bullet or number of the next item of a list; None where the list is not defined."""
        if number not in self._lists:
            return None
        key, levels = self._lists[number]
        count = self._counts.setdefault(key, _Count()).at
        shape = levels.get(level, _Level("bullet", "", 1))
        held = count[level]
        count[level] = shape.start if held is None else held + 1
        count[level + 1 :] = [None] * (8 - level)
        if shape.format == "bullet":
            return "-"
        if shape.format == "none":
            return ""
        return re.sub(
            r"%(\d)", lambda found: self._part(levels, count, int(found[1]) - 1), shape.text
        )

    @staticmethod
    def _part(levels: dict[int, _Level], count: list[int | None], level: int) -> str:
        shape = levels.get(level, _Level("decimal", "", 1))
        value = count[level] if 0 <= level < 9 else None
        return _counted(shape.start if value is None else value, shape.format)

    def _add(self, node: Any) -> None:
        number, abstract = node.get(f"{W}numId", ""), _value(node, "abstractNumId") or ""
        levels = dict(self._abstract.get(abstract, {}))
        restarts = False
        for override in node.findall(f"{W}lvlOverride"):
            level = as_int(override.get(f"{W}ilvl")) or 0
            if (own := override.find(f"{W}lvl")) is not None:
                levels[level] = _level(own)
            if (start := as_int(_value(override, "startOverride"))) is not None:
                restarts = True
                old = levels.get(level, _Level("decimal", f"%{level + 1}.", 1))
                levels[level] = _Level(old.format, old.text, start)
        # Lists of one definition count on, unless one says that it begins anew.
        self._lists[number] = (f"{abstract}/{number}" if restarts else abstract, levels)


def _levels(node: Any) -> dict[int, _Level]:
    return {as_int(child.get(f"{W}ilvl")) or 0: _level(child) for child in node.findall(f"{W}lvl")}


def _level(node: Any) -> _Level:
    start = as_int(_value(node, "start"))
    form = _value(node, "numFmt") or "decimal"
    return _Level(form, _value(node, "lvlText") or "", 1 if start is None else start)


def _counted(value: int, form: str) -> str:
    if form in ("lowerLetter", "upperLetter") and 0 < value <= 780:
        letters = chr(ord("a") + (value - 1) % 26) * ((value - 1) // 26 + 1)
        return letters if form == "lowerLetter" else letters.upper()
    if form in ("lowerRoman", "upperRoman") and 0 < value < 4000:
        return roman(value) if form == "upperRoman" else roman(value).lower()
    if form == "decimalZero":
        return f"{value:02}"
    return str(value)


def roman(value: int) -> str:
    """A number from 1 to 3999 in Roman numerals."""
    steps = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L")]
    steps += [(40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for size, sign in steps:
        text += sign * (value // size)
        value %= size
    return text
