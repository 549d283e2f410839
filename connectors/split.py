"""A document to chunks that tile it: cut at headings first, then at ever smaller joints of the text."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from epicrag.connectors.joints import code_lines, lines, sentences, snug, whole_character, words
from epicrag.types import Chunk, Document, Place, chunk_header, place_of

_WINDOW_CHARS = 16_000
"""Tokenisers may need quadratic time: they are never given more characters than this at once."""
_FULL_ENOUGH = 0.4
_WORTH_A_CUT = 0.25
_MAX_HEADER_SHARE = 0.25


class TokenCounter(Protocol):
    """Tokens of a text in the serving model's tokenizer, special tokens in the text not parsed."""

    def count(self, text: str) -> int:
        """Return the number of tokens."""
        ...

    def ends(self, text: str) -> Sequence[int]:
        """Return the end of each token in characters, never decreasing; the last is `len(text)`."""
        ...


def split(document: Document, counter: TokenCounter, *, chunk_tokens: int = 512) -> list[Chunk]:
    """Split a document into chunks of at most `chunk_tokens` tokens, headers included.

    The chunks' spans tile the text without gap or overlap. Only a single character that is more than
    `chunk_tokens` tokens long makes a longer chunk.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    if not document.text:
        return []
    return _Splitter(document, counter, chunk_tokens).run()


class _Splitter:
    """Cuts from left to right: finds how far the budget reaches, then the best joint within reach."""

    def __init__(self, document: Document, counter: TokenCounter, budget: int) -> None:
        self._document = document
        self._text = document.text
        self._counter = counter
        self._budget = budget
        # Only runs of white space are so long for their tokens; counting must stay quick.
        self._max_chars = max(_WINDOW_CHARS - 2_000, 8 * budget)
        self._anchor_starts = [anchor.start for anchor in document.anchors]
        self._ends = token_ends(self._text, counter)
        self._header_tokens: dict[str, int] = {}
        code = [block for block in document.blocks if block.kind == "code"]
        self._code_starts = [block.start for block in code]
        self._code_ends = [block.end for block in code]
        self._tables = document.tables
        self._table_starts = [table.start for table in document.tables]
        self._pages = [
            after.start for before, after in pairwise(document.anchors) if after.page != before.page
        ]
        self._find_joints()

    def run(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        start = 0
        while start < len(self._text):
            chunk = self._next(start, len(chunks))
            chunks.append(chunk)
            start = chunk.end
        return chunks

    def _find_joints(self) -> None:
        """Sort the starts of blocks into joints: strong, plain and weak."""
        self._sections: list[int] = []  # a heading, a rule, another heading in force
        self._blocks: list[int] = []  # a paragraph, code, a table
        self._rows: list[int] = []  # a row after a row
        self._stuck: dict[int, int] = {}  # start of what follows a heading: start of that heading
        before = None
        for block in self._document.blocks:
            if before is not None:
                if before.kind == "heading":
                    self._stuck[block.start] = self._stuck.get(before.start, before.start)
                elif block.kind in ("heading", "break") or self._changes(before.start, block.start):
                    self._sections.append(block.start)
                elif block.kind == "row" == before.kind:
                    self._rows.append(block.start)
                else:
                    self._blocks.append(block.start)
            before = block

    def _is_code(self, at: int) -> bool:
        """Does `at` lie within a block of code?"""
        found = bisect_right(self._code_starts, at) - 1
        return found >= 0 and at < self._code_ends[found]

    def _changes(self, before: int, after: int) -> bool:
        """Is another heading in force at `after` than at `before`?"""
        return self._place(before, before + 1).heading != self._place(after, after + 1).heading

    def _place(self, start: int, end: int) -> Place:
        return place_of(self._document.anchors, self._anchor_starts, start, end)

    def _next(self, start: int, ordinal: int) -> Chunk:
        """Return the chunk that begins at `start`: the budget is estimated, then checked."""
        room = max(self._budget - self._header_cost(start), 1)
        last = self._page_end(start)
        while True:
            limit = min(self._reach(start, room), last)
            end = self._cut(start, limit, last) if room else limit
            chunk = self._chunk(start, end, ordinal)
            if chunk.n_tokens <= self._budget or not room:
                return chunk
            # Tokens joined or parted at the new edges, or white space was taken along.
            room = self._less(start, end, room, chunk.n_tokens - self._budget)

    def _less(self, start: int, end: int, room: int, excess: int) -> int:
        """Return a smaller room; when there is none left, the next try is a single character."""
        used = bisect_right(self._ends, end) - bisect_right(self._ends, start)
        return max(min(room, used) - max(excess, 1), 0)

    def _reach(self, start: int, room: int) -> int:
        """Return the last place that `room` tokens from `start` reach, at least one character on."""
        first = bisect_right(self._ends, start)
        last = first + room
        most = whole_character(self._text, min(start + self._max_chars, len(self._text)), start)
        if last >= len(self._ends):
            return most
        # Tokens may share a character's end: the character is reached only when all of them fit.
        at = bisect_left(self._ends, self._ends[last]) - 1
        reached = self._ends[at] if at >= first else start
        least = whole_character(self._text, start)
        return max(min(whole_character(self._text, reached, start), most), least)

    def _page_end(self, start: int) -> int:
        """Return the end of the page that `start` is on: a passage is cited with one page, exactly."""
        at = bisect_right(self._pages, start)
        return self._pages[at] if at < len(self._pages) else len(self._text)

    def _cut(self, start: int, limit: int, last: int) -> int:
        """Return the best place to cut in `(start, limit]`; `last`, when all up to there fits."""
        if section := self._section_within(start, limit):
            return section
        if limit == last:
            return last
        inside = code_lines if self._is_code(limit) else sentences
        worth = self._filled(start, limit, _WORTH_A_CUT)
        enough = self._filled(start, limit, _FULL_ENOUGH)
        inner = (
            _last_within(self._blocks, worth, limit)
            or _last_within(self._rows, enough, limit)
            or inside(self._text, enough, limit)
            or lines(self._text, enough, limit)
            or words(self._text, worth, limit)
            or limit
        )
        return self._unstick(start, snug(self._text, inner))

    def _section_within(self, start: int, limit: int) -> int | None:
        """Return the first strong joint behind which the chunk is full enough."""
        at = bisect_left(self._sections, self._filled(start, limit, _FULL_ENOUGH, whole=True))
        found = self._sections[at] if at < len(self._sections) else None
        return found if found is not None and start < found <= limit else None

    def _filled(self, start: int, limit: int, share: float, *, whole: bool = False) -> int:
        """Return the place from which on a share of the room is used."""
        first = bisect_right(self._ends, start)
        room = self._budget if whole else bisect_right(self._ends, limit) - first
        at = min(first + int(room * share), len(self._ends) - 1)
        return max(self._ends[at], _skip_space(self._text, start) + 1)  # never white space alone

    def _unstick(self, start: int, end: int) -> int:
        """A heading is not left behind at the end of a chunk."""
        heading = self._stuck.get(end)
        return heading if heading is not None and heading > start else end

    def _header_cost(self, start: int) -> int:
        """Tokens of the header that a chunk from here would have."""
        text = self._text[start : start + 500]
        first = _skip_space(self._text, start)
        place = self._place(first, start + 1)
        parts = self._header_parts(place.heading, text)
        return self._count_header(chunk_header(*parts, text, self._table_head(first)))

    def _table_head(self, first: int) -> str | None:
        """The head of the table whose rows begin above `first`; None where it would crowd out the text."""
        at = bisect_right(self._table_starts, first) - 1
        if at < 0 or not self._tables[at].start < first < self._tables[at].end:
            return None
        head = self._tables[at].head
        return head if self._count_header(head) <= self._budget * _MAX_HEADER_SHARE else None

    def _count_header(self, header: str) -> int:
        if header not in self._header_tokens:
            self._header_tokens[header] = self._counter.count(header[:_WINDOW_CHARS])
        return self._header_tokens[header]

    def _chunk(self, start: int, end: int, ordinal: int) -> Chunk:
        """Make the chunk, and count it with its header."""
        text = self._text[start:end]
        first = _skip_space(self._text, start) if not text.isspace() else start
        place = self._place(first, max(start + len(text.rstrip()), first + 1))
        title, heading = self._header_parts(place.heading, text)
        if heading != place.heading:
            place = replace(place, heading=heading)
        table = self._table_head(first)
        model_text = chunk_header(title, heading, text, table) + text
        n_tokens = self._counter.count(model_text)
        return Chunk(self._document.path, ordinal, start, end, text, title, place, n_tokens, table)

    def _header_parts(self, heading: str | None, text: str) -> tuple[str | None, str | None]:
        """Return title and heading, less of them where they would crowd out the text."""
        title = self._document.title
        inner = heading.rsplit(" > ", 1)[-1] if heading else None
        for parts in ((title, heading), (title, inner), (None, inner), (title, None)):
            cost = self._count_header(chunk_header(*parts, text))
            if cost <= self._budget * _MAX_HEADER_SHARE:
                return parts
        return None, None


def token_ends(text: str, counter: TokenCounter) -> array[int]:
    """Return the ends of all tokens of a text of any length, tokenised window by window."""
    ends = array("q")
    start = 0
    while start < len(text):
        end = _window_end(text, start)
        ends.extend([start + offset for offset in counter.ends(text[start:end])])
        start = end
    return ends


def _window_end(text: str, start: int) -> int:
    """End a window where a line or a word ends, if one does in its second half."""
    end = start + _WINDOW_CHARS
    if end >= len(text):
        return len(text)
    for mark in ("\n", " "):
        # The mark begins the next window: tokens hold the space before a word, not after it.
        if (at := text.rfind(mark, start + _WINDOW_CHARS // 2, end)) > start:
            return at
    return end


def _last_within(joints: Sequence[int], least: int, most: int) -> int | None:
    """Return the last joint in `[least, most]`."""
    at = bisect_right(joints, most) - 1
    return joints[at] if at >= 0 and joints[at] >= least else None


def _skip_space(text: str, start: int) -> int:
    """Return the first character from `start` on that is not white space, `start` when none is near."""
    window = text[start : start + _WINDOW_CHARS]
    bare = window.lstrip()
    return start + len(window) - len(bare) if bare else start
