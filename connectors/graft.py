"""What one reader has read, written into another's draft: the page of a book, the text of a mail."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.connectors.base import Parsed
    from epicrag.connectors.draft import Draft
    from epicrag.types import Block, Document


def graft(
    draft: Draft, parsed: Parsed | Document, *, level: int = 0, line: int | None = None
) -> None:
    """Write a text block by block, with its headings and tables.

    Args:
        level: its headings stand below those of this level and above.
        line: source line of its first line; without one, its lines mean nothing and are left out.
    """
    starts = [anchor.start for anchor in parsed.anchors]
    tables = list(reversed(parsed.tables))
    opened: int | None = None  # where the table being written began in the draft
    end = 0
    for block in parsed.blocks:
        if opened is not None and block.start >= tables[-1].end:
            draft.table(opened, tables.pop().head)
            opened = None
        if block.kind == "heading":
            depth, name = _heading(parsed, starts, block)
            draft.enter(level + depth, name)
        gap = parsed.text[end : block.start]
        draft.open(block.kind, gap if end and gap.isspace() and len(gap) < 8 else "\n\n")
        if opened is None and tables and block.start >= tables[-1].start:
            opened = draft.length
        _write(draft, parsed, starts, block, line)
        draft.close()
        end = block.end
    if opened is not None:
        draft.table(opened, tables.pop().head)


def _write(
    draft: Draft, parsed: Parsed | Document, starts: list[int], block: Block, line: int | None
) -> None:
    """Write the characters of a block, in pieces of one source line each."""
    start = block.start
    at = max(bisect_right(starts, start) - 1, 0)
    while start < block.end:
        after = starts[at + 1] if at + 1 < len(starts) else block.end
        own = parsed.anchors[at].line if at < len(starts) else None
        draft.line = line + own - 1 if line is not None and own is not None else line
        draft.write_exact(parsed.text[start : min(after, block.end)])
        start, at = max(start, after), at + 1


def _heading(parsed: Parsed | Document, starts: list[int], block: Block) -> tuple[int, str]:
    """A heading's depth and name: by its marks in Markdown, else by those above it."""
    at = bisect_right(starts, block.start) - 1
    path = (parsed.anchors[at].heading if at >= 0 else None) or ""
    above, _, name = path.rpartition(" > ")
    depth = above.count(" > ") + 2 if above else 1
    if parsed.media == "text/markdown":
        source = parsed.text[block.start : block.end].lstrip()
        marks = len(source) - len(source.lstrip("#"))
        depth = marks or (1 if source.rstrip().endswith("=") else 2)
    return depth, name
