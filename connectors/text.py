"""Plain text: paragraphs between blank lines, source lines exact."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epicrag.connectors.base import Parsed
from epicrag.connectors.lines import line_anchors
from epicrag.types import Block

# A paragraph ends at a blank line or a form feed; \f alone on its line is the old page break.
_GAP = re.compile(r"\n(?:[^\S\n]*\n)+|\f")


def parse_text(text: str, encoding: str | None = None) -> Parsed:
    """Read a text as it stands. A text has no title of its own: its first line may be anything."""
    return Parsed(
        text=text,
        media="text/plain",
        encoding=encoding,
        anchors=line_anchors(text),
        blocks=tuple(paragraphs(text, 0, len(text))),
    )


def paragraphs(text: str, start: int, end: int) -> Iterator[Block]:
    """Yield the paragraphs of `text[start:end]`, without the white space around them."""
    for gap in _GAP.finditer(text, start, end):
        yield from _paragraph(text, start, gap.start())
        start = gap.end()
    yield from _paragraph(text, start, end)


def _paragraph(text: str, start: int, end: int) -> Iterator[Block]:
    body = text[start:end]
    bare = body.strip()
    if bare:
        left = start + len(body) - len(body.lstrip())
        yield Block(left, left + len(bare), "paragraph")
