"""The frozen nouns that flow between the rooms. No torch, no work at import.

Tensor letters used everywhere: L layers, H query heads, G key/value heads, T tokens, D head dimension.
Character spans are half-open `[start, end)` and count Python characters of `Document.text`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

# --- documents -----------------------------------------------------------------------------------

BlockKind = Literal["heading", "paragraph", "code", "row", "break"]
MetaValue = str | int | float | bool | tuple[str, ...]
"""What a document says of itself: a text, a number, a flag, or several texts (authors, tags)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a span stands in its source, as a person would cite it."""

    page: int | None = None
    """First page, slide, sheet or message, counted from 1; None where the format has none."""
    lines: tuple[int, int] | None = None
    """First and last source line, counted from 1, both included; None where lines mean nothing."""
    heading: str | None = None
    """The headings above the span, outermost first, joined by " > "."""
    part: str | None = None
    """What to call the page where it is none: "slide 3", "sheet Sales", "cell 2 – cell 4"."""
    cells: tuple[str, str] | None = None
    """The corners of the range of a sheet that holds the span, as "A4" and "F17"; None in other formats."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """From character `start` on, the text stands on this page, source line and under this heading."""

    start: int
    page: int | None = None
    line: int | None = None
    heading: str | None = None
    part: str | None = None
    cell: str | None = None
    """A cell of a sheet, "A4", or a range of them, "A4:F4"."""


@dataclass(frozen=True, slots=True)
class Block:
    """A structural unit of a document: the splitter prefers to cut between blocks."""

    start: int
    end: int
    kind: BlockKind


@dataclass(frozen=True, slots=True)
class Table:
    """A table within a text. A chunk that begins below its first row is shown `head` above its text."""

    start: int
    end: int
    head: str
    """The line or lines that say what the columns are, without a line end."""


@dataclass(frozen=True, slots=True)
class Document:
    """One file, read: its text, and the exact map from the text back to places in the file.

    `anchors` are sorted by `start`; the first starts at 0 unless the text is empty. `blocks` are sorted,
    do not overlap, and may leave gaps (white space between paragraphs).
    """

    path: str
    """Absolute path of the source, with forward slashes: the identity of the document."""
    text: str
    digest: str
    """SHA-256 of the file's bytes, in hex."""
    media: str = "text/plain"
    title: str | None = None
    """A title found in the content itself, never the file name: renaming must not change the KV."""
    encoding: str | None = None
    anchors: tuple[Anchor, ...] = ()
    blocks: tuple[Block, ...] = ()
    tables: tuple[Table, ...] = ()
    """Sorted by start, not overlapping."""
    meta: Mapping[str, MetaValue] = field(default_factory=dict)
    """What the content says of itself, for filters: lower-case names such as author, date, year, subject."""
    reading: int = 0
    """The version of the readers that read it (`connectors.formats.READING`); 0 where that is not known."""

    def place(self, start: int, end: int) -> Place:
        """Return the place of `text[start:end]`: page and heading of its start, lines of both ends."""
        starts = [anchor.start for anchor in self.anchors]
        return place_of(self.anchors, starts, start, end)


def place_of(anchors: Sequence[Anchor], starts: Sequence[int], start: int, end: int) -> Place:
    """`Document.place` for callers who ask often and keep `starts = [a.start for a in anchors]`."""
    if not anchors:
        return Place()
    at = max(bisect_right(starts, start) - 1, 0)
    within = anchors[at : max(bisect_right(starts, max(end - 1, start)), 1)]
    first, last = within[0], within[-1]
    lines = [anchor.line for anchor in within if anchor.line is not None]
    has_lines = first.line is not None and last.line is not None
    return Place(
        page=first.page,
        lines=(min(lines), max(lines)) if has_lines else None,
        heading=first.heading,
        part=_part(first.part, last.part),
        cells=_box(within) if first.cell and last.cell else None,
    )


def _box(anchors: Sequence[Anchor]) -> tuple[str, str]:
    """The corners of the smallest range that holds the cells of all anchors."""
    names = {name for anchor in anchors if anchor.cell for name in anchor.cell.split(":")}
    columns = [name.rstrip("0123456789") for name in names]
    rows = [int(name[len(column) :] or 0) for name, column in zip(names, columns, strict=True)]
    columns.sort(key=lambda column: (len(column), column))
    return f"{columns[0]}{min(rows)}", f"{columns[-1]}{max(rows)}"


def _part(first: str | None, last: str | None) -> str | None:
    return first if first == last or not first or not last else f"{first} – {last}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document that is cached and reused as a whole."""

    document: str
    """`Document.path`."""
    ordinal: int
    """0, 1, 2 … in reading order within the document."""
    start: int
    end: int
    text: str
    """Exactly `document.text[start:end]`."""
    title: str | None = None
    place: Place = field(default_factory=Place)
    n_tokens: int = 0
    """Tokens of `model_text` in the serving model's tokenizer; 0 until counted."""
    table: str | None = None
    """The head of the table that the text begins within; None when it begins elsewhere."""

    @property
    def header(self) -> str:
        """The stable metadata the model sees above the text: title, heading and the head of a table that
        was cut, never path or date."""
        return chunk_header(self.title, self.place.heading, self.text, self.table)

    @property
    def model_text(self) -> str:
        """What is tokenised, compiled and put before the model."""
        return self.header + self.text

    @property
    def id(self) -> str:
        """Content-addressed: equal text and equal header give equal ids, whatever the file is called."""
        return hashlib.sha256(self.model_text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def chunk_header(
    title: str | None, heading: str | None, text: str, table: str | None = None
) -> str:
    """Return the header of a chunk: a line of headings, unless it would repeat how the text begins, and
    the head of a table."""
    words: list[str] = []
    for word in [title or "", *(heading or "").split(" > ")]:
        word = " ".join(word.split())
        if word and word not in words:
            words.append(word)
    first_line = " ".join(text.lstrip().split("\n", 1)[0].lstrip("#= ").split())
    if words and words[-1] == first_line:
        words.pop()
    head = f"{table}\n" if table else ""
    return " > ".join(words) + "\n" + head if words else head


# --- reading and syncing -------------------------------------------------------------------------

FileStatus = Literal[
    "added",
    "changed",
    "renamed",
    "deleted",
    "unchanged",
    "empty",
    "skipped",
    "unsupported",
    "failed",
]


class Entry(Protocol):
    """What a source holds and the index may hold as a document: a file, a member of an archive, a page."""

    @property
    def path(self) -> str:
        """The identity of the document: for files absolute, with forward slashes, links resolved."""

    @property
    def size(self) -> int:
        """Bytes, as far as known without reading."""

    def digest(self) -> str:
        """What tells this content from any other, equal to the `Document.digest` that `read` gives.

        OSError: it cannot be had; reading then says why.
        """

    def read(self) -> Document | Unread:
        """The document, or why there is none. Bad content never raises."""

    def refusal(self) -> str | None:
        """Why no reader takes this, as far as can be told without reading; None when one does."""


class Origin(NamedTuple):
    """A document from the web as one root led to it, and what its server said of the version read."""

    path: str
    root: str
    """The sitemap or address that was ingested."""
    asked: str
    """The address that was asked for; the page may have moved from there."""
    digest: str = ""
    """Of the version that etag and modified belong to."""
    etag: str = ""
    modified: str = ""


@dataclass(frozen=True, slots=True)
class FileReport:
    """One line of the ingest report."""

    path: str
    status: FileStatus
    reason: str | None = None
    chunks: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """A reader's answer when a file yields no text: which of the statuses it is, and why."""

    status: Literal["empty", "skipped", "unsupported", "failed"]
    reason: str


# --- questions and answers -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one stage of retrieval put a passage."""

    rank: int
    """From 1."""
    score: float
    """Of that stage: a cosine (dense), BM25 (words), a reciprocal rank (fused), or the reranker's own."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk found by retrieval."""

    row: int
    """The catalog's id of the chunk."""
    chunk: Chunk
    score: float
    """Cosine similarity in [-1, 1], whatever ranked it; 0 for a chunk that has no vector."""
    stages: Mapping[str, Stage] = field(default_factory=dict, compare=False)
    """What `dense`, `words`, `fused` and `rerank` made of it, those that found it."""
    also: tuple[str, ...] = field(default=(), compare=False)
    """Documents that hold the same passage and were ranked lower: it is shown once."""


@dataclass(frozen=True, slots=True)
class Relevance:
    """Whether what was found speaks of what was asked, and what that rests on."""

    is_relevant: bool
    score: float
    threshold: float
    rule: str
    """"auto", or "min_score" where a number was set; "filter" where a filter fits no passage at all."""
    features: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    """In words, for a person."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search returns: the passages, best first, and whether they speak of what was asked."""

    hits: tuple[Hit, ...]
    relevance: Relevance


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that was put before the model, as the answer's source list shows it."""

    n: int
    path: str
    page: int | None
    lines: tuple[int, int] | None
    heading: str | None
    chunk: str
    score: float | None
    cited: bool = False
    part: str | None = None
    cells: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds per stage; `first_token` and `total` are counted from the call."""

    retrieve: float = 0.0
    wait: float = 0.0
    """In the queue, before anything was done."""
    load: float = 0.0
    stitch: float = 0.0
    select: float = 0.0
    link: float = 0.0
    first_token: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an answer says about its own cost. `context_tokens = exact + stitched + recomputed`."""

    policy: str
    compile: str
    context_tokens: int
    """Tokens of the system prompt and the chunks, and of the conversation so far where it was found."""
    exact: int
    """Reused where it was compiled, behind the very text it was compiled behind: what a full prefill would
    have there, but for the rounding of the stored sixteen bits."""
    stitched: int
    """Reused at another place or behind another text than it was compiled for: approximate."""
    recomputed: int
    """Context tokens whose keys and values were computed during this request."""
    fresh: int
    """Tokens of the question, the template, the labels, and of the conversation where it was not found."""
    dropped_chunks: int = 0
    fallback: str | None = None
    """Why reuse was refused or reduced; None when the policy ran as asked."""
    ms: Timings = field(default_factory=Timings)
    charged: float = 0.0
    """What was computed for the context, over the context, selection passes included: a pass of n tokens
    through m of L layers counts as n m / L tokens."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    text: str
    answered: bool
    sources: tuple[Source, ...]
    receipt: Receipt | None
    usage: Usage
    model: str
    grounded: bool = False
    """Whether at least one sentence was found in a passage, by its words; a model's own marker is no proof.
    Words are all that is compared: a wrong answer in a passage's words counts, a right one in others may not."""
    relevance: Relevance | None = None
    """Why the passages were taken to speak of the question, or not; None when they were given."""
