"""The text of a Word paragraph: what a reader of the printed page reads, and what hangs on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from epicrag.connectors.docx_styles import W, is_on
from epicrag.connectors.omml import linear

_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_DGM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"
_WP = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}"

_LEFT_OUT = frozenset(
    W + name
    for name in (
        "del",
        "moveFrom",
        "delText",
        "instrText",
        "delInstrText",
        "pPr",
        "rPr",
        "rt",
        "sdtPr",
        "sdtEndPr",
        "tblPr",
        "trPr",
        "tcPr",
        "sectPr",
    )
)
_SIGNS = {
    f"{W}tab": "\t",
    f"{W}ptab": "\t",
    f"{W}cr": "\n",
    f"{W}noBreakHyphen": "-",
}
_SYMBOLS = {
    "F0FE": "☑",
    "F0FD": "☒",
    "F0A8": "☐",
    "F06F": "☐",
    "F052": "☑",
    "F0E0": "→",
    "F0DF": "←",
}
_SYMBOLS |= {"F0B0": "°", "F0B1": "±", "F06D": "μ", "F0A3": "≤", "F0B3": "≥", "F0B4": "×"}


@dataclass(slots=True)
class Inline:
    """A paragraph's text, and what is anchored in it: boxes, notes, comments, charts."""

    parts: list[str] = field(default_factory=list)
    boxes: list[Any] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """("footnote" | "endnote" | "comment", id)"""
    drawings: list[tuple[str, str]] = field(default_factory=list)
    """("chart" | "diagram" | "image", relationship id, or the text that stands for an image)"""

    @property
    def text(self) -> str:
        """The paragraph's text."""
        return "".join(self.parts)


class Runs:
    """Reads paragraphs one after the other: fields may begin in one and end in a later one."""

    def __init__(self) -> None:
        self._fields: list[bool] = []  # of each open field: is its result being read?
        self.numbers: dict[tuple[str, str], int] = {}  # notes, in the order they are referred to

    def read(self, paragraph: Any) -> Inline:
        """Return a paragraph's text."""
        # A field whose code goes over a paragraph's end is broken: text must not vanish in it.
        self._fields = [state for state in self._fields if state]
        inline = Inline()
        self._walk(paragraph, inline)
        return inline

    def _walk(self, node: Any, inline: Inline) -> None:
        for child in node:
            tag = child.tag
            if tag == f"{W}t":
                self._add(child.text or "", inline)
            elif tag == f"{W}r":
                properties = child.find(f"{W}rPr")
                if properties is None or not is_on(properties.find(f"{W}vanish")):
                    self._walk(child, inline)
                else:
                    self._hidden(child)
            elif tag in _LEFT_OUT or not isinstance(tag, str):
                continue
            elif tag in _SIGNS:
                self._add(_SIGNS[tag], inline)
            else:
                self._special(child, tag, inline)

    def _special(self, node: Any, tag: str, inline: Inline) -> None:
        name = tag.rpartition("}")[2]
        if tag == f"{W}fldChar":
            self._field(node.get(f"{W}fldCharType"))
        elif tag == f"{W}br":
            self._add("\n" if node.get(f"{W}type") in (None, "textWrapping") else " ", inline)
        elif tag == f"{W}sym":
            self._add(_symbol(node), inline)
        elif tag == f"{W}txbxContent":
            inline.boxes.append(node)
        elif tag in (f"{_M}oMath", f"{_M}oMathPara"):
            self._add(linear(node), inline)
        elif tag in (f"{W}footnoteReference", f"{W}endnoteReference"):
            self._note(name.removesuffix("Reference"), node.get(f"{W}id", ""), inline)
        elif tag == f"{W}commentReference":
            inline.notes.append(("comment", node.get(f"{W}id", "")))
        elif tag == f"{_MC}AlternateContent":
            self._alternate(node, inline)
        elif tag == f"{W}sdt":
            self._control(node, inline)
        elif tag == f"{_C}chart":
            inline.drawings.append(("chart", node.get(f"{_R}id", "")))
        elif tag == f"{_DGM}relIds":
            inline.drawings.append(("diagram", node.get(f"{_R}dm", "")))
        elif tag == f"{_WP}docPr":
            if text := image_text(node.get("descr")):
                inline.drawings.append(("image", text))
        else:
            self._walk(node, inline)

    def _add(self, text: str, inline: Inline) -> None:
        if text and all(self._fields):
            inline.parts.append(text)

    def _field(self, kind: str | None) -> None:
        if kind == "begin":
            self._fields.append(False)
        elif kind == "separate" and self._fields:
            self._fields[-1] = True
        elif kind == "end" and self._fields:
            self._fields.pop()

    def _hidden(self, run: Any) -> None:
        """Hidden text is left out, but a field that begins there begins."""
        for child in run:
            if child.tag == f"{W}fldChar":
                self._field(child.get(f"{W}fldCharType"))

    def _note(self, kind: str, note: str, inline: Inline) -> None:
        key = (kind, note)
        if key not in self.numbers:
            self.numbers[key] = sum(known == kind for known, _ in self.numbers) + 1
        inline.notes.append(key)
        self._add(f" ({kind} {self.numbers[key]})", inline)

    def _alternate(self, node: Any, inline: Inline) -> None:
        """Content that is stored twice, for newer and older programs: the first that holds anything."""
        for choice in node:
            if not isinstance(choice.tag, str):
                continue
            trial = Inline()
            self._walk(choice, trial)
            if trial.text.strip() or trial.boxes or trial.drawings or trial.notes:
                inline.parts += trial.parts
                inline.boxes += trial.boxes
                inline.notes += trial.notes
                inline.drawings += trial.drawings
                return

    def _control(self, node: Any, inline: Inline) -> None:
        """A content control: its content, unless that is only the words "click here to enter text"."""
        if not is_placeholder(node):
            self._walk(node, inline)


def is_placeholder(control: Any) -> bool:
    """Does a content control show nothing but its prompt?"""
    properties = control.find(f"{W}sdtPr")
    return properties is not None and is_on(properties.find(f"{W}showingPlcHdr"))


def image_text(text: str | None) -> str:
    """The text that stands for an image, where a person wrote it."""
    text = " ".join((text or "").split())
    lower = text.lower()
    made = "automatically generated" in lower or "ki-generiert" in lower or "ai-generated" in lower
    name = lower.endswith((".png", ".jpg", ".jpeg", ".gif", ".emf", ".wmf", ".bmp", ".svg"))
    return "" if made or name or "\\" in text or len(text.split()) < 2 else text


def _symbol(node: Any) -> str:
    code = (node.get(f"{W}char") or "").upper()
    if code in _SYMBOLS:
        return _SYMBOLS[code]
    try:
        value = int(code, 16)
    except ValueError:
        return ""
    return "" if 0xE000 <= value <= 0xF8FF or not 32 <= value < 0xD800 else chr(value)
