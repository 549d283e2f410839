"""The map from characters to source lines, for texts that are kept exactly as they stand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epicrag.connectors.base import pace
from epicrag.types import Anchor


class Line(NamedTuple):
    """One source line: its number from 1, and the span of its characters without the line end."""

    number: int
    start: int
    end: int


def lines_of(text: str) -> Iterator[Line]:
    """Yield the lines of a text. Only a line feed ends a line: it is what editors count."""
    start, number = 0, 1
    while (end := text.find("\n", start)) >= 0:
        pace()
        yield Line(number, start, end)
        start, number = end + 1, number + 1
    if start < len(text):
        yield Line(number, start, len(text))


def line_anchors(text: str, headings: Sequence[tuple[int, str | None]] = ()) -> tuple[Anchor, ...]:
    """Anchor each line that holds something to its number and its heading.

    `headings` are (start, heading), sorted by start: from there on this heading is in force. Blank
    lines get no anchor, so a passage never counts the empty lines behind it.
    """
    starts = [start for start, _ in headings]
    anchors: list[Anchor] = []
    for line in lines_of(text):
        if anchors and (line.start == line.end or text[line.start : line.end].isspace()):
            continue
        at = bisect_right(starts, line.start) - 1
        heading = headings[at][1] if at >= 0 else None
        anchors.append(Anchor(line.start, line=line.number, heading=heading))
    return tuple(anchors)
