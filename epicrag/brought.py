"""Texts that a request brings along, cut into chunks as ingest cuts documents, so that they are cached as well."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epicrag.chunkbook import BookChunk, GivenChunk, UnwritableError, storable
from epicrag.errors import UsageError

if TYPE_CHECKING:
    from epicrag.chunkbook import ChunkBook
    from epicrag.connectors.split import TokenCounter

_log = logging.getLogger("epicrag")

KEPT = 512
"""Documents whose cuts are remembered."""
MAX_DOCUMENTS = 1_000


@dataclass(frozen=True, slots=True)
class BroughtDocument:
    """A document of a request."""

    text: str
    id: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk of a brought document, and of which: its number in the request, from 0, and what it is called."""

    chunk: BookChunk
    document: int
    name: str
    part: int
    """Which of the document's chunks it is, from 0."""


class Bringer:
    """Cuts documents and notes their chunks in a book. For many threads at once."""

    def __init__(self, book: ChunkBook, counter: TokenCounter, chunk_tokens: int) -> None:
        self._book = book
        self._counter = counter
        self._chunk_tokens = chunk_tokens
        self._mutex = threading.Lock()
        self._cuts: OrderedDict[tuple[str, str], tuple[GivenChunk, ...]] = OrderedDict()

    def bring(
        self,
        namespace: str,
        documents: Sequence[BroughtDocument],
        check: Callable[[], object] = lambda: None,
    ) -> list[Passage]:
        """Return the chunks of all documents in their order, each text once, noted in the namespace.

        The same document gives the same chunks whatever stands around it, so that only its first request
        computes them. `check` is called between two documents, and ends it by what it raises. UsageError: a document without text, or too many. ChunksFullError: more than is kept.
        """
        if len(documents) > MAX_DOCUMENTS:
            raise UsageError(
                f"{len(documents):,} documents in one request, of at most {MAX_DOCUMENTS:,}",
                "send those that the question needs, or register chunks (POST /v1/chunks)",
            )
        cuts = []
        for number, document in enumerate(documents):
            check()
            cuts.append(self._cut(namespace, number, document))
        chunks = iter(self._noted(namespace, [chunk for cut in cuts for chunk in cut], check))
        once: dict[str, Passage] = {}
        for number, (document, cut) in enumerate(zip(documents, cuts, strict=True)):
            name = document.id or document.title or f"document {number + 1}"
            for part in range(len(cut)):
                chunk = next(chunks)
                once.setdefault(chunk.model_text, Passage(chunk, number, name, part))
        return list(once.values())

    def _noted(
        self, namespace: str, given: Sequence[GivenChunk], check: Callable[[], object]
    ) -> list[BookChunk]:
        """Chunks noted in the book or, where that takes no more, for this request alone."""
        try:
            return self._book.bring(namespace, given, check)
        except UnwritableError as error:
            _log.warning("documents of a request are read, and not kept: %s", error)
            return self._book.unkept(namespace, given)

    def _cut(
        self, namespace: str, number: int, document: BroughtDocument
    ) -> tuple[GivenChunk, ...]:
        """A document's chunks, each with the one before it. Remembered in its namespace only."""
        if not document.text.strip():
            raise UsageError(f"document {number + 1} has no text", "leave it out, or send its text")
        parts = (document.title or "", document.text)
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        with self._mutex:
            if (known := self._cuts.get((namespace, digest))) is not None:
                self._cuts.move_to_end((namespace, digest))
                return known
        cut = _split(document, self._counter, self._chunk_tokens)
        with self._mutex:
            self._cuts[namespace, digest] = cut
            while len(self._cuts) > KEPT:
                self._cuts.popitem(last=False)
        return cut


def _split(
    document: BroughtDocument, counter: TokenCounter, chunk_tokens: int
) -> tuple[GivenChunk, ...]:
    from epicrag.connectors.split import split
    from epicrag.connectors.text import parse_text
    from epicrag.types import Document

    text = storable(document.text)
    parsed = parse_text(text)
    whole = Document(
        path="",
        text=text,
        digest="",
        title=storable(document.title) if document.title else None,
        anchors=parsed.anchors,
        blocks=parsed.blocks,
    )
    cut: list[GivenChunk] = []
    before: str | None = None
    for chunk in split(whole, counter, chunk_tokens=chunk_tokens):
        if not chunk.text.strip():
            continue
        given = GivenChunk(chunk.text, title=chunk.title, before=before)
        cut.append(given)
        before = given.content_id
    return tuple(cut)
