"""Text out of pictures of pages, by an OCR engine that is an extra of its own: `epicrag[ocr]`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any

from epicrag.connectors.pdf_layout import Piece, arranged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Engine = Callable[["NDArray[np.uint8]"], list[Piece]]

INSTALL = "pip install 'epicrag[ocr]'"
MAX_SIDE = 2_600
"""Pixels of a picture's longer side, at most: what an engine needs grows with its area."""
_MIN_IN_COLUMN = 3
_SPANS = 0.6


def is_installed() -> bool:
    """Is there an engine? Nothing is imported to find out."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def read_picture(image: NDArray[np.uint8], seconds: float) -> str | None:
    """Return the text of a picture (height, width, 3), line by line; None when that took too long.

    An engine cannot be stopped: after `seconds` it is left to end on its own, and not waited for.
    """
    found: list[list[Piece] | BaseException] = []

    def run() -> None:
        try:
            found.append(engine()(image))
        except Exception as error:  # noqa: BLE001 - handed on to the caller
            found.append(error)

    thread = threading.Thread(target=run, name="ocr", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        return None
    if isinstance(found[0], BaseException):
        raise found[0]
    return text_of(found[0])


@cache
def engine() -> Engine:
    """Return the engine. Its models come with its package: nothing is fetched."""
    from rapidocr import RapidOCR

    recognise = RapidOCR(params={"Global.log_level": "critical"})

    def read(image: NDArray[np.uint8]) -> list[Piece]:
        answer: Any = recognise(image)
        if answer.boxes is None:
            return []
        return [
            Piece(text, *_edges(box))
            for box, text in zip(answer.boxes.tolist(), answer.txts, strict=True)
        ]

    return read


def _edges(box: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    across, down = [point[0] for point in box], [point[1] for point in box]
    return min(across), min(down), max(across), max(down)


def text_of(pieces: Sequence[Piece]) -> str:
    """The pieces of a page as lines, in reading order: columns one after the other, rows as rows."""
    ordered = reading_order(pieces)
    return arranged(ordered) or "\n".join(_joined(ordered))


def reading_order(pieces: Sequence[Piece]) -> list[Piece]:
    """Order the pieces of a page: what spans it parts it into bands, a band is read column by column."""
    if not pieces:
        return []
    left, right = min(p.left for p in pieces), max(p.right for p in pieces)
    ordered: list[Piece] = []
    band: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.top + piece.bottom) / 2):
        if piece.right - piece.left >= _SPANS * (right - left):
            ordered += [*_columns(band), piece]
            band = []
        else:
            band.append(piece)
    return [*ordered, *_columns(band)]


def _columns(band: Sequence[Piece]) -> list[Piece]:
    """Read a band from its left column to its right one, or across where it has no gutter."""
    gutter = _gutter(band)
    if gutter is None:
        return _across(band)
    left = [piece for piece in band if piece.right <= gutter]
    return [*_columns(left), *_columns([piece for piece in band if piece.right > gutter])]


def _gutter(band: Sequence[Piece]) -> float | None:
    """Where a column of prose ends and another begins; None when no white gap parts the band so."""
    if len(band) < 2 * _MIN_IN_COLUMN:
        return None
    height = median(piece.bottom - piece.top for piece in band)
    reached = 0.0
    for piece in sorted(band, key=lambda piece: piece.left):
        if reached and piece.left - reached > height:
            sides = (
                [p for p in band if p.right <= reached],
                [p for p in band if p.left >= piece.left],
            )
            if all(len(side) >= _MIN_IN_COLUMN and _is_prose(side) for side in sides):
                return reached
        reached = max(reached, piece.right)
    return None


def _is_prose(side: Sequence[Piece]) -> bool:
    return median(len(piece.text) for piece in side) >= 15


def _across(band: Sequence[Piece]) -> list[Piece]:
    """Line by line, each from left to right."""
    lines: list[list[Piece]] = []
    for piece in sorted(band, key=lambda piece: (piece.top + piece.bottom) / 2):
        if lines and _is_level(lines[-1][-1], piece):
            lines[-1].append(piece)
        else:
            lines.append([piece])
    return [piece for line in lines for piece in sorted(line, key=lambda piece: piece.left)]


def _is_level(one: Piece, other: Piece) -> bool:
    shared = min(one.bottom, other.bottom) - max(one.top, other.top)
    return shared > 0.5 * min(one.bottom - one.top, other.bottom - other.top)


def _joined(ordered: Sequence[Piece]) -> list[str]:
    """Lines of text: pieces side by side on one line are one."""
    lines: list[str] = []
    before: Piece | None = None
    for piece in ordered:
        if before is not None and _is_level(before, piece) and piece.left >= before.right - 5:
            lines[-1] += f" {piece.text}"
        else:
            lines.append(piece.text)
        before = piece
    return lines
