"""What PDFium knows of a page's characters beyond their order: where each one stands."""

from __future__ import annotations

import ctypes
import re
from itertools import pairwise
from statistics import median
from typing import Any

from epicrag.connectors.pdf_layout import Piece

_MAX_CHARS = 30_000
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_BULLETS = re.compile(
    "[•●▪◦■*\uf0a7\uf0b7\uf0d8\uf0fc] ?\\S[^\n]*\\S[ \t]+[•●▪◦■*\uf0a7\uf0b7\uf0d8\uf0fc] ?\\S"
)
_NUMBER = re.compile(r"(?<![\w.,])[-+($€£]?\d[\d.,:]*%?\)?(?![\w.,])")
_CONTROL = re.compile("[\x03-\x08\x0b\x0c\x0e-\x1f]")
"""What bullets come out as, where a font does not say what they are."""
_WORTH = 5
"""So many lines that look like rows or lists side by side are worth a closer look at the page."""
_GAP = (1.0, 1.6)
"""A gap of the first, in heights of the letters, parts two cells; of the second, where words stand wide
apart, as in type-written and in justified text."""
_WIDER = 2.2
"""A gap between cells is so many times as wide as one between words."""


def is_right_to_left(text: str) -> bool:
    """Does the text have Hebrew or Arabic letters in it?"""
    return _RIGHT_TO_LEFT.search(text) is not None


def may_be_tabular(text: str) -> bool:
    """Do many lines of a page look like rows of numbers, cells on lines of their own, or two lists side
    by side? Asked of the text alone: most pages are prose, and need no closer look."""
    if len(text) > _MAX_CHARS:
        return False
    if len(_BULLETS.findall(_CONTROL.sub("•", text))) >= 3:
        return True
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    rows = sum(len(_NUMBER.findall(line)) >= 2 for line in lines)
    cells = sum(len(line) <= 30 for line in lines)
    return rows >= _WORTH or (cells >= _WORTH and cells >= 0.35 * len(lines))


class Characters:
    """The characters of one text page, with their boxes as a reader sees them: y grows downwards."""

    def __init__(self, page: Any, textpage: Any) -> None:
        import pypdfium2.raw as pdfium

        self._raw = textpage.raw
        self._pdfium = pdfium
        self._n = min(textpage.count_chars(), _MAX_CHARS)
        self._rotation = page.get_rotation()
        self._width, self._height = page.get_size()
        self._box = tuple(ctypes.c_double() for _ in range(4))
        self.text = [chr(pdfium.FPDFText_GetUnicode(self._raw, at)) for at in range(self._n)]

    def logical(self) -> str:
        """The text with the parts of one glyph in their own order.

        PDFium turns lines that run from right to left around, and with them the letters that one
        glyph stands for: a lam-alef comes out as alef-lam, a whole word in one glyph backwards.
        """
        out: list[str] = []
        at = 0
        while at < self._n:
            end = at + 1
            if _RIGHT_TO_LEFT.match(self.text[at]) or self.text[at] == " ":
                box = self._place(at)
                while end < self._n and self._is_part(end) and self._place(end) == box:
                    end += 1
            run = self.text[at:end]
            turned = len(run) > 1 and any(map(_RIGHT_TO_LEFT.match, run))
            out.extend(reversed(run) if turned else run)
            at = end
        return "".join(out)

    def _is_part(self, at: int) -> bool:
        return _RIGHT_TO_LEFT.match(self.text[at]) is not None or self.text[at] == " "

    def pieces(self) -> list[Piece]:
        """Runs of characters that stand close together on one line, in PDFium's order."""
        boxes = [None if self._is_blank(at) else self._place(at) for at in range(self._n)]
        height, gap = _usual([box for box in boxes if box is not None])
        found: list[Piece] = []
        letters: list[str] = []
        edges = _NOWHERE

        def end() -> None:
            if words := "".join(letters).strip(" "):
                found.append(Piece(_CONTROL.sub("•", words), *edges))
            letters.clear()

        for letter, box in zip(self.text, boxes, strict=True):
            if letter in "\r\n":
                end()
            elif box is None:
                letters.extend(" " if letters else "")
            else:
                if letters and not _is_next(edges, box, height, gap):
                    end()
                edges = _around(edges, box) if letters else box
                letters.append(letter)
        end()
        return found

    def _is_blank(self, at: int) -> bool:
        """Is this a space, or something that PDFium put between the characters?"""
        return self.text[at] in " \r\n" or bool(self._pdfium.FPDFText_IsGenerated(self._raw, at))

    def _place(self, at: int) -> tuple[float, float, float, float]:
        """The box of a character as (left, top, right, bottom) on the page as it is shown."""
        left, right, bottom, top = self._box
        self._pdfium.FPDFText_GetCharBox(self._raw, at, left, right, bottom, top)
        x0, x1, y0, y1 = left.value, right.value, bottom.value, top.value
        match self._rotation:
            case 90:
                return y0, x0, y1, x1
            case 180:
                return self._width - x1, y0, self._width - x0, y1
            case 270:
                return self._width - y1, self._height - x1, self._width - y0, self._height - x0
            case _:
                return x0, self._height - y1, x1, self._height - y0


_Box = tuple[float, float, float, float]
_NOWHERE: _Box = (0.0, 0.0, 0.0, 0.0)


def _usual(boxes: list[_Box]) -> tuple[float, float]:
    """The usual height of a page's letters, and the usual gap between its words."""
    if not boxes:
        return 1.0, 1.0
    height = median(box[3] - box[1] for box in boxes)
    gaps = [after[0] - before[2] for before, after in pairwise(boxes) if _level(before, after)]
    between = sorted(gap for gap in gaps if 0.25 * height < gap < 5 * height)
    return height, between[len(between) // 4] if between else height


def _level(one: _Box, other: _Box) -> bool:
    return min(one[3], other[3]) > max(one[1], other[1])


def _is_next(before: _Box, box: _Box, usual: float, between: float) -> bool:
    """Does a character go on where others ended: on their line, and not far from them?"""
    height = max(before[3] - before[1], box[3] - box[1], usual)
    if min(before[3], box[3]) < max(before[1], box[1]) - 0.3 * height:
        return False
    gap = max(_GAP[0] * height, min(_WIDER * between, _GAP[1] * height))
    return before[0] - gap <= box[2] and box[0] <= before[2] + gap


def _around(one: _Box, other: _Box) -> _Box:
    return (
        min(one[0], other[0]),
        min(one[1], other[1]),
        max(one[2], other[2]),
        max(one[3], other[3]),
    )
