"""Pages of a PDF that have no text of their own: scans, and pages whose letters mean nothing."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Sequence
from typing import Any

from epicrag.connectors import ocr
from epicrag.connectors.base import Limits, ocr_too_slow
from epicrag.connectors.decode import is_blank
from epicrag.types import Unread

_DPI = 200
_CID = re.compile(r"\(cid:\d+\)")
_MAX_GARBAGE = 0.3
_MIN_LETTERS = 8


def is_garbage(text: str) -> bool:
    """Are these no letters: signs of a font that does not say what its glyphs mean?"""
    text = _CID.sub("\ufffd", text)
    letters = [character for character in text if not character.isspace()]
    if len(letters) < _MIN_LETTERS:
        return False
    bad = sum(
        character == "\ufffd" or unicodedata.category(character) in ("Co", "Cn", "Cs", "Cc")
        for character in letters
    )
    return bad > _MAX_GARBAGE * len(letters)


def without_text(document: Any, pages: Sequence[str]) -> list[int]:
    """The indices of pages that show something, and have no text to read."""
    return [
        index
        for index, text in enumerate(pages)
        if (is_blank(text) and _shows_something(document, index)) or is_garbage(text)
    ]


def _shows_something(document: Any, index: int) -> bool:
    page = document[index]
    try:
        return any(True for _ in page.get_objects(max_depth=2))
    finally:
        page.close()


def why_not_read(n_pages: int, limits: Limits) -> str:
    """Say that a PDF is a scan, and what to do about it."""
    pages = f"{n_pages:,} pages" if n_pages > 1 else "one page"
    scan = f"no text: a scan of {pages}, which needs OCR"
    if limits.ocr == "never":
        return f'{scan}; it is switched off: allow it with --ocr auto, or ocr = "auto"'
    if not ocr.is_installed():
        return f"{scan}; install it with: {ocr.INSTALL}"
    return f"no text: OCR found none on {pages}"


def read_scans(document: Any, indices: Sequence[int], limits: Limits) -> dict[int, str] | Unread:
    """Return the text of these pages by OCR; none where there is no engine or none is wanted."""
    if limits.ocr == "never" or not indices or not ocr.is_installed():
        return {}
    found: dict[int, str] = {}
    deadline = time.monotonic() + limits.max_ocr_seconds
    for index in indices:
        left = deadline - time.monotonic()
        text = ocr.read_picture(_picture(document, index), left) if left > 0 else None
        if text is None:
            return ocr_too_slow(len(found), len(indices), limits.max_ocr_seconds)
        found[index] = text
    return found


def _picture(document: Any, index: int) -> Any:
    """A page as an array of pixels (height, width, 3)."""
    page = document[index]
    try:
        scale = min(_DPI / 72, ocr.MAX_SIDE / max(*page.get_size(), 1.0))
        return page.render(scale=scale, may_draw_forms=False).to_numpy()[..., :3].copy()
    finally:
        page.close()
