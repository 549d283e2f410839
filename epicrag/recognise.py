"""Known chunks found in flat text, so that a prompt that someone else has put together is answered from their KV.

What is not found costs time and nothing else: parts of a text, joined, are the text.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from epicrag.errors import EpicragError
from epicrag.known import BEGINS, Candidate, Known
from epicrag.seams import Stretch, seamless

if TYPE_CHECKING:
    from collections.abc import Callable

    from epicrag.chunkbook import ChunkBook
    from epicrag.index.catalog import Catalog
    from epicrag.serving.prompt import Piece
    from epicrag.types import Chunk

_log = logging.getLogger("epicrag")

LEAST_TOKENS = 32
"""A shorter stretch is not worth it: the first sixteen tokens of each are computed again anyway."""

AT_ONCE = 2_000
"""So many new chunks are read while a request waits; more of them in a thread of their own."""

N_CHUNKS = 512
"""Chunks whose texts are kept with their tokens."""

N_NAMESPACES = 64
_ALIKE = 8
"""Chunks of the same text that are looked at for the one whose header stands there, too."""
_MOST_READS = 2_000
_SHARE = 0.05
"""Of the time, at most, for looking what has changed: while documents are ingested it does all the time."""


class Asker(Protocol):
    """For whom a text is searched: what of the chunks it may know."""

    @property
    def namespace(self) -> str: ...
    @property
    def may_ask(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Whoever:
    """An asker by its namespace; one of the process itself knows the index."""

    namespace: str = ""
    may_ask: bool = True


class Tokenizer(Protocol):
    def ids(self, text: str) -> tuple[int, ...]: ...
    def ends(self, text: str) -> Sequence[int]: ...
    def tokens(self, text: str, *, behind: bool = False) -> Sequence[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True)
class KnownChunk:
    """A chunk as it is compiled."""

    text: str
    """What the model reads: a header, if it has one, and its own text."""
    body: tuple[int, int]
    """Where its own text stands in that, without white space around it."""
    before: str | None
    namespace: str = ""

    @classmethod
    def of(cls, text: str, own: str, before: str | None, namespace: str = "") -> KnownChunk:
        """`text` ends with `own`."""
        start = len(text) - len(own.lstrip())
        return cls(text, (start, start + len(own.strip())), before, namespace)


class Source(Protocol):
    """A set of chunks that grows and shrinks."""

    known: Known

    def refresh(self, *, wait: bool) -> None:
        """Follow what has changed; without `wait` what takes long is left to another thread."""

    def read(self, rows: Sequence[int]) -> dict[int, KnownChunk]:
        """The chunks of some rows; those that are gone are left out."""


@dataclass(frozen=True, slots=True)
class _Match:
    chunk: KnownChunk
    start: int
    end: int
    """Where the chunk's own text stands, in characters."""


class Recogniser:
    """Finds the chunks of an index, and of a book, in flat text. For many threads at once.

    The chunks are known by hashes (see `Known`); what these find is compared with the chunk itself, as the
    catalog or the book has it now.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, index: Path | None = None, book: ChunkBook | None = None
    ) -> None:
        """`index`: the folder of one, whether it is there yet or not."""
        self._tokenizer = tokenizer
        self._index = IndexSource(index) if index is not None else None
        self._book = book
        self._namespaces: OrderedDict[str, BookSource] = OrderedDict()
        self._mutex = threading.Lock()

    def prepare(self, *, wait: bool = False) -> None:
        """Read the index now, in a thread of its own unless `wait`, and not at the first request."""
        if self._index is not None:
            self._index.refresh(wait=wait)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()

    def parts(self, text: str, asker: Asker | None = None) -> tuple[str | Piece, ...]:
        """Return a text in parts, the known chunks in it as pieces, each with the span of it that stands there.

        Joined, the parts are the text; and the tokens of the parts, each alone, are those of the text: a chunk
        of which that cannot be had stays plain text. An asker gets pieces of the index if it may ask it, and of its own
        namespace. Whatever fails, the text comes back as it is.
        """
        asker = asker or Whoever()
        try:
            matches = self._matches(text, self._sources(asker))
        except EpicragError as error:
            _log.warning("chunks are not looked for in a prompt: %s", error.message)
            return (text,)
        return self._laid_out(text, matches)

    # --- finding ---

    def _sources(self, asker: Asker) -> list[Source]:
        sources: list[Source] = []
        if self._book is not None and asker.namespace:
            with self._mutex:
                own = self._namespaces.pop(asker.namespace, None)
                own = own or BookSource(self._book, asker.namespace)
                self._namespaces[asker.namespace] = own
                while len(self._namespaces) > N_NAMESPACES:
                    self._namespaces.popitem(last=False)
            sources.append(own)
        if self._index is not None and asker.may_ask:
            sources.append(self._index)
        return sources

    def _matches(self, text: str, sources: Sequence[Source]) -> list[_Match]:
        """The chunks whose own text stands in a text, in order, none within or across another."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) < BEGINS:
            return []
        found: list[tuple[Candidate, Source]] = []
        for source in sources:
            source.refresh(wait=False)
            found += [(candidate, source) for candidate in source.known.find(data)]
        found.sort(key=lambda pair: (pair[0].start - pair[0].end, pair[0].start))
        taken = _Taken()
        reads = 0
        for (start, end), group in groupby(found, key=lambda pair: pair[0][:2]):
            if not taken.is_free(start, end):
                continue
            alike = list(group)[:_ALIKE]
            reads += len(alike)
            if reads > _MOST_READS:
                break
            if chunk := _best(data, start, end, alike):
                taken.take(start, end, chunk)
        return list(taken.matches(data))

    # --- laying out ---

    def _laid_out(self, text: str, matches: Sequence[_Match]) -> tuple[str | Piece, ...]:
        stretches, chunks = [], []
        done = 0
        for index, match in enumerate(matches):
            limit = matches[index + 1].start if index + 1 < len(matches) else len(text)
            stretch = self._stretch(text, match, done, limit)
            if stretch and stretch.n_tokens >= LEAST_TOKENS:
                stretches.append(stretch)
                chunks.append(match.chunk)
                done = stretch.high
        parts: list[str | Piece] = []
        done = 0
        for stretch, chunk in zip(seamless(text, stretches, self._tokenizer), chunks, strict=True):
            if stretch is None:
                continue  # alone it would be other tokens than it is here
            parts += [text[done : stretch.low], _piece(chunk, stretch)]
            done = stretch.high
        parts.append(text[done:])
        return tuple(part for part in parts if part != "") or ("",)

    def _stretch(self, text: str, match: _Match, low: int, high: int) -> Stretch | None:
        """As much of a chunk as stands there: its own text, and of its header and its end what is there, too.

        `low`, `high`: where the chunk before it ends, and the next begins.
        """
        whole, (first, last) = match.chunk.text, match.chunk.body
        start, end = match.start, match.end
        while first and start > low and whole[first - 1] == text[start - 1]:
            first, start = first - 1, start - 1
        while last < len(whole) and end < high and whole[last] == text[end]:
            last, end = last + 1, end + 1
        ends, ids = self._tokenizer.ends(whole), self._tokenizer.ids(whole)
        if len(ends) != len(ids):
            return None  # it spells a control token, and where its tokens end is not told
        return Stretch.of(whole, ends, ids, start - first, first, last)


def _best(
    data: bytes, start: int, end: int, alike: Iterable[tuple[Candidate, Source]]
) -> KnownChunk | None:
    """Of chunks that may stand at a place the one of which most does; None where none does."""
    best, most = None, -1
    for candidate, source in alike:
        chunk = source.read([candidate.row]).get(candidate.row)
        if chunk is None:
            continue
        first, last = chunk.body
        if chunk.text[first:last].encode("utf-8", "surrogatepass") != data[start:end]:
            continue
        header = chunk.text[:first].encode("utf-8", "surrogatepass")
        common = _common_end(header, data[max(0, start - len(header)) : start])
        if common > most:
            best, most = chunk, common
    return best


def _common_end(left: bytes, right: bytes) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[-1 - n] == right[-1 - n]:
        n += 1
    return n


class _Taken:
    """Stretches of a text that are spoken for."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[tuple[int, int, KnownChunk]] = []  # in order

    def is_free(self, start: int, end: int) -> bool:
        at = bisect_left(
            self._starts, end
        )  # of those that begin before its end, the last ends last
        return at == 0 or self._spans[at - 1][1] <= start

    def take(self, start: int, end: int, chunk: KnownChunk) -> None:
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._spans.insert(at, (start, end, chunk))

    def matches(self, data: bytes) -> Iterator[_Match]:
        """From bytes to characters, in order."""
        place = at = 0
        for start, end, chunk in self._spans:
            place += len(data[at:start].decode("utf-8", "surrogatepass"))
            length = chunk.body[1] - chunk.body[0]
            yield _Match(chunk, place, place + length)
            place, at = place + length, end


def _piece(chunk: KnownChunk, stretch: Stretch) -> Piece:
    from epicrag.serving.prompt import Piece

    low, high = stretch.span
    if (low, high) == (0, len(chunk.text)):
        return Piece(chunk.text, chunk.before, chunk.namespace)
    shown = chunk.text[low:high]
    return Piece(chunk.text, chunk.before, chunk.namespace, shown=shown, start=low)


class IndexSource:
    """The chunks of an index, read over a connection of its own: ingest may run in this process or another."""

    def __init__(self, folder: Path) -> None:
        self.known = Known()
        self._folder = folder
        self._catalog: Catalog | None = None
        self._stamp = ""
        self._rows = np.zeros(0, np.int64)
        self._next = 0.0
        self._mutex = threading.Lock()
        self._reading = threading.Lock()
        self._texts: OrderedDict[int, KnownChunk] = OrderedDict()

    def close(self) -> None:
        with self._reading, self._mutex:
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def refresh(self, *, wait: bool) -> None:
        began = time.monotonic()
        if not wait and began < self._next:
            return
        if not self._reading.acquire(blocking=wait):
            return  # another thread is at it
        handed_on = False
        try:
            catalog = self._opened()
            if catalog is None or (stamp := catalog.stamp) == self._stamp:
                return
            rows, tokens = catalog.chunk_tokens()
            rows = rows[tokens >= LEAST_TOKENS]
            new = set(np.setdiff1d(rows, self._rows, assume_unique=True).tolist())
            gone = np.setdiff1d(self._rows, rows, assume_unique=True).tolist()

            def read() -> None:
                chunks = _each(catalog, new) if len(self._rows) else catalog.all_chunks()
                self.known.update(
                    ((row, chunk.text.strip()) for row, chunk in chunks if row in new), gone
                )
                self._rows, self._stamp = rows, stamp
                with self._mutex:
                    self._texts.clear()
                self._next = time.monotonic() + (time.monotonic() - began) / _SHARE

            if wait or len(new) <= AT_ONCE:
                read()
            else:
                self._read_aside(read)
                handed_on = True
        finally:
            if not handed_on:
                self._reading.release()

    def read(self, rows: Sequence[int]) -> dict[int, KnownChunk]:
        found = {}
        for row in rows:
            if chunk := self._read(row):
                found[row] = chunk
        return found

    def _read(self, row: int) -> KnownChunk | None:
        with self._mutex:
            if row in self._texts:
                self._texts.move_to_end(row)
                return self._texts[row]
        catalog = self._opened()
        if catalog is None:
            return None
        try:
            chunk, before = catalog.chunk(row), catalog.previous(row)
        except KeyError:
            return None
        known = KnownChunk.of(chunk.model_text, chunk.text, before.model_text if before else None)
        with self._mutex:
            self._texts[row] = known
            while len(self._texts) > N_CHUNKS:
                self._texts.popitem(last=False)
        return known

    def _opened(self) -> Catalog | None:
        """The catalog; None while there is none."""
        from epicrag.index.catalog import FILE_NAME, Catalog

        with self._mutex:
            if self._catalog is None and (self._folder / FILE_NAME).exists():
                self._catalog = Catalog.open(self._folder)
            return self._catalog

    def _read_aside(self, read: Callable[[], None]) -> None:
        """Read in a thread of its own, which gives back the turn at reading."""

        def run() -> None:
            try:
                read()
            except EpicragError as error:
                _log.warning("the chunks of the index are not recognised: %s", error.message)
                self._next = time.monotonic() + 60
            finally:
                self._reading.release()

        threading.Thread(target=run, name="epicrag-recognise", daemon=True).start()


def _each(catalog: Catalog, rows: Iterable[int]) -> Iterator[tuple[int, Chunk]]:
    """The chunks of some rows; those that are gone meanwhile are left out."""
    for row in rows:
        with suppress(KeyError):
            yield row, catalog.chunk(row)


class BookSource:
    """The chunks of one namespace of a book."""

    def __init__(self, book: ChunkBook, namespace: str) -> None:
        self.known = Known()
        self._book = book
        self._namespace = namespace
        self._version: tuple[int, int] | None = None
        self._rows: frozenset[int] = frozenset()
        self._mutex = threading.Lock()

    def refresh(self, *, wait: bool) -> None:
        with self._mutex:
            version = self._book.version(self._namespace)
            if version == self._version:
                return
            rows = self._book.rows(self._namespace)
            worth = frozenset(row for row, tokens in rows.items() if tokens >= LEAST_TOKENS)
            new = self._book.read(self._namespace, worth - self._rows)
            texts = ((chunk.row, chunk.text.strip()) for chunk in new)
            self.known.update(texts, self._rows - worth)
            self._rows, self._version = worth, version

    def read(self, rows: Sequence[int]) -> dict[int, KnownChunk]:
        found = self._book.read(self._namespace, rows)
        self._book.note_use(chunk.row for chunk in found)
        return {
            chunk.row: KnownChunk.of(
                chunk.model_text, chunk.text, chunk.before_text, self._namespace
            )
            for chunk in found
        }


def piece_of(
    catalog: Catalog, chunk_id: str, offset: int | None = None
) -> tuple[Piece, str] | None:
    """The passage of an index with this id as a piece, and its own text; None where there is none."""
    from epicrag.serving.prompt import Piece

    rows = catalog.rows_with(chunk_id)
    if not rows:
        return None
    row = rows[0][0]
    chunk, before = catalog.chunk(row), catalog.previous(row)
    piece = Piece(chunk.model_text, before.model_text if before else None, offset=offset)
    return piece, chunk.text
