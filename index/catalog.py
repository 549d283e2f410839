"""The catalog: the one truth about documents, their chunks, vectors and KV."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import DamagedError
from epicrag.index import wordsearch
from epicrag.index.database import Database, damaged
from epicrag.index.fields import Facts
from epicrag.index.migrations import words_again
from epicrag.index.origins import Origins
from epicrag.types import Chunk, Document, MetaValue, Place

FILE_NAME = "catalog.sqlite"
_VECTOR_BATCH = 4096  # some megabytes
_HISTORY = 1 << 16  # states; some megabytes
_AT_ONCE = 500
"""Values in one query: SQLite takes a thousand at least."""
_UNIT_TOLERANCE = 1e-2  # half-precision embedders are this far from unit length

_DOCUMENT = """
SELECT documents.row, path, digest, documents.title, media, meta, count(chunks.row),
       coalesce(sum(n_tokens), 0), reading
FROM documents LEFT JOIN chunks ON document_row = documents.row
"""
_CHUNK = """
SELECT chunks.row, path, ordinal, start, "end", text, chunks.title, page, line_first, line_last,
       heading, part, cell_first, cell_last, n_tokens, table_head, id
FROM chunks JOIN documents ON documents.row = document_row
"""
_INSERT_CHUNK = """
INSERT INTO chunks (document_row, ordinal, start, "end", text, title, page, line_first, line_last,
                    heading, part, cell_first, cell_last, n_tokens, table_head, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class DocumentRow:
    row: int
    path: str
    digest: str
    title: str | None
    media: str
    meta: dict[str, MetaValue]
    chunks: int
    tokens: int
    reading: int = 0
    """See `Document.reading`."""


@dataclass(frozen=True, slots=True)
class Counts:
    documents: int
    chunks: int
    tokens: int
    vectors: int


class Vectors(NamedTuple):
    """Vectors by their ids, ascending; an id is never used twice."""

    ids: NDArray[np.int64]  # (N,)
    chunk_rows: NDArray[np.int64]  # (N,)
    data: NDArray[np.float32]  # (N, dim), unit rows


class Catalog:
    """Documents and all that is known of them, in one SQLite file.

    Every change is one transaction: it happens whole or not at all, whatever fails, and readers in
    this or any other process see the state before it or after it. Rows are never reused.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, folder: Path, *, create: bool = False) -> Catalog:
        """Open the catalog of an index folder, made first if `create`.

        IndexEmptyError: there is none. DamagedError: it is no catalog, or unsound. MismatchError: a
        newer epicrag wrote it. A folder that cannot be written to is opened to read.
        """
        return cls(Database.open(folder / FILE_NAME, create=create))

    @property
    def database(self) -> Database:
        """The file itself: for what else stands in it, and for proving it whole."""
        return self._database

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def snapshot(self) -> AbstractContextManager[None]:
        """All reads within see the catalog as it was at the first of them; no writes within."""
        return self._database.snapshot()

    @property
    def generation(self) -> int:
        """Grows by one with each committed change to documents."""
        return int(self._one("SELECT generation FROM state"))

    @property
    def stamp(self) -> str:
        """A random name of the present generation: equal stamps mean the very same documents."""
        return str(self._one("SELECT stamp FROM state"))

    def has_been(self, generation: int, stamp: str) -> bool:
        """Return whether this catalog is of that state or grew from it; False also when that is long ago."""
        return bool(
            self._rows(
                "SELECT 1 FROM history WHERE generation = ? AND stamp = ?", generation, stamp
            )
        )

    def counts(self) -> Counts:
        with self.snapshot():
            return Counts(
                documents=self._one("SELECT count(*) FROM documents"),
                chunks=self._one("SELECT count(*) FROM chunks"),
                tokens=self._one("SELECT coalesce(sum(n_tokens), 0) FROM chunks"),
                vectors=self._one("SELECT count(*) FROM vectors"),
            )

    @property
    def origins(self) -> Origins:
        """Where documents from the web were found."""
        return Origins(self._database)

    # --- settings ---

    def setting(self, name: str) -> str | None:
        rows = self._rows("SELECT value FROM settings WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    def settings(self) -> dict[str, str]:
        return dict(self._rows("SELECT name, value FROM settings"))

    def set_setting(self, name: str, value: str) -> None:
        """Store a setting; documents and the generation stay as they are."""
        with self._database.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    # --- documents ---

    def documents(self) -> list[DocumentRow]:
        """Return all documents, by path."""
        rows = self._rows(_DOCUMENT + "GROUP BY documents.row ORDER BY path")
        return [_document(row) for row in rows]

    def document(self, path: str) -> DocumentRow | None:
        rows = self._rows(_DOCUMENT + "WHERE path = ? GROUP BY documents.row", _encode(path))
        return _document(rows[0]) if rows else None

    def put_document(
        self,
        document: Document,
        chunks: Sequence[Chunk],
        vectors: Sequence[NDArray[np.float32]],
    ) -> list[int]:
        """Replace what is known of `document.path` in one transaction and return the chunks' rows.

        `vectors[i]` holds the windows of chunk i, (W, dim) unit rows. W may be 0: such a chunk is kept
        for its neighbours and never found. ValueError, and no change: counts that differ, vectors
        that are not finite, not of unit length, or not of the index's dimension.
        """
        with self._database.writing() as connection:
            rows = _put(connection, document, chunks, vectors)
            step(connection)
        return rows

    def load(
        self,
        documents: Iterable[tuple[Document, Sequence[Chunk], Sequence[NDArray[np.float32]]]],
        keys: Mapping[tuple[str, int], str],
        settings: Mapping[str, str],
    ) -> int:
        """Put many documents, KV keys by (path, ordinal) and settings, all in one transaction.

        Each document as `put_document` does. Returns how many there were. Whatever fails, the iterator
        included, leaves the catalog as it was.
        """
        n = 0
        with self._database.writing() as connection:
            for document, chunks, vectors in documents:
                rows = _put(connection, document, chunks, vectors)
                named = zip(rows, chunks, strict=True)
                known = [(row, keys.get((document.path, chunk.ordinal))) for row, chunk in named]
                connection.executemany(
                    "INSERT INTO kv VALUES (?, ?)", [(row, key) for row, key in known if key]
                )
                n += 1
            connection.executemany(
                "INSERT OR REPLACE INTO settings VALUES (?, ?)", settings.items()
            )
            step(connection)
        return n

    def rename_documents(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Relabel many at once, (old, new): names may be swapped or passed on, and what no pair takes
        away from a new name is replaced. One transaction; KeyError: an old path is not known."""
        with self._database.writing() as connection:
            for number, (old, _) in enumerate(pairs):
                moved = connection.execute(
                    "UPDATE documents SET path = ? WHERE path = ?", (_aside(number), _encode(old))
                )
                if not moved.rowcount:
                    raise KeyError(old)
            for number, (_, new) in enumerate(pairs):
                connection.execute("DELETE FROM documents WHERE path = ?", (_encode(new),))
                connection.execute(
                    "UPDATE documents SET path = ? WHERE path = ?", (_encode(new), _aside(number))
                )
            if pairs:
                step(connection)

    def delete_document(self, path: str) -> None:
        """Forget a document with its chunks, vectors and KV entries; nothing happens if unknown."""
        self.delete_documents([path])

    def delete_documents(self, paths: Sequence[str]) -> None:
        """Forget several documents in one transaction; unknown ones are passed over."""
        with self._database.writing() as connection:
            known = [path for path in paths if _exists(connection, path)]
            for path in known:
                connection.execute("DELETE FROM documents WHERE path = ?", (_encode(path),))
            if known:
                step(connection)

    # --- chunks ---

    def chunk(self, row: int) -> Chunk:
        """Return a chunk; KeyError when its document was replaced or deleted."""
        found = self._chunks("WHERE chunks.row = ?", row)
        if not found:
            raise KeyError(row)
        return found[0][1]

    def chunks(self, path: str) -> list[tuple[int, Chunk]]:
        """Return the rows and chunks of a document in reading order; [] when it is unknown."""
        return self._chunks("WHERE path = ? ORDER BY ordinal", _encode(path))

    def chunk_ids(self, path: str) -> list[tuple[int, str]]:
        """Return the rows and ids of a document's chunks in reading order: the texts are not read."""
        return self._rows(
            "SELECT chunks.row, id FROM chunks JOIN documents ON documents.row = document_row"
            " WHERE path = ? ORDER BY ordinal",
            _encode(path),
        )

    def changed_texts(self, path: str | None = None) -> int:
        """Return how many chunks, of all or of a document, have another text than was put: it changed on disk."""
        where, values = ("WHERE path = ?", (_encode(path),)) if path is not None else ("", ())
        with self._database.cursor(_CHUNK + where, values) as rows:
            return sum(_chunk(columns).id != stored for _, *columns, stored in rows)

    def all_chunks(self, having: Container[int] | None = None) -> Iterator[tuple[int, Chunk]]:
        """Yield all chunks by document, in reading order, one document in memory at a time.

        With `having`, only the documents that have one of these chunks: the others' texts are not read.
        """
        for (row,) in self._rows("SELECT row FROM documents ORDER BY path"):
            if having is None or any(chunk in having for chunk in self.rows_of([row])):
                yield from self._chunks("WHERE document_row = ? ORDER BY ordinal", row)

    def chunk_rows(self, prefix: str = "") -> list[tuple[int, str, str]]:
        """Return (row, id, path) of the chunks whose ids begin so, by row: the texts are not read."""
        rows = self._rows(
            "SELECT chunks.row, id, path FROM chunks JOIN documents ON documents.row = document_row"
            " WHERE id >= ?1 AND id < ?1 || 'g' ORDER BY chunks.row",  # "g" follows all hex digits
            prefix,
        )
        return [(row, chunk_id, _decode(path)) for row, chunk_id, path in rows]

    def chunk_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of all chunks, ascending, and the tokens of each: (N,), (N,). No text is read."""
        with self._database.cursor("SELECT row, n_tokens FROM chunks") as rows:
            table = np.fromiter(rows, np.dtype((np.int64, 2)))
        chunk_rows, tokens = table[np.argsort(table[:, 0])].T.copy()
        return chunk_rows, tokens

    def previous(self, row: int) -> Chunk | None:
        """Return the passage before a chunk in its document; None for the first."""
        found = self._chunks(
            "WHERE chunks.row = (SELECT before.row FROM chunks AS this JOIN chunks AS before"
            " ON before.document_row = this.document_row AND before.ordinal < this.ordinal"
            " WHERE this.row = ? ORDER BY before.ordinal DESC LIMIT 1)",
            row,
        )
        return found[0][1] if found else None

    def renew_words(self) -> None:
        """Make table, triggers and words of all chunks again; chunks and the generation stay as they are."""
        with self._database.writing() as connection:
            for statement in words_again():
                connection.execute(statement)

    # --- vectors ---

    def vectors(self, *, after: int = 0) -> Vectors:
        """Return the vectors whose ids are greater than `after`: of all chunks by default."""
        batches = list(self.vector_batches(after=after))
        if not batches:
            return Vectors(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0), "<f4"))
        if len({batch.data.shape[1] for batch in batches}) > 1:
            raise damaged(self._database.file, "vectors differ in length")
        return Vectors(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))

    def vector_batches(self, *, after: int = 0) -> Iterator[Vectors]:
        """Yield the same, a few thousand at a time; one state of the catalog only within a `snapshot`."""
        while True:
            batch = self._some_vectors(after)
            if not len(batch.ids):
                return
            yield batch
            after = int(batch.ids[-1])

    def _some_vectors(self, after: int) -> Vectors:
        rows = self._rows(
            "SELECT id, chunk_row, data FROM vectors WHERE id > ? ORDER BY id LIMIT ?",
            after,
            _VECTOR_BATCH,
        )
        ids, chunk_rows, blobs = zip(*rows, strict=True) if rows else ((), (), ())
        if len({len(blob) for blob in blobs}) > 1:
            raise damaged(self._database.file, "vectors differ in length")
        dim = len(blobs[0]) // 4 if blobs else 0
        data = np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), dim)
        if not _is_unit(data):
            raise damaged(self._database.file, "a vector is not of unit length")
        return Vectors(np.array(ids, np.int64), np.array(chunk_rows, np.int64), data)

    def chunk_count(self) -> int:
        return int(self._one("SELECT count(*) FROM chunks"))

    def vector_count(self) -> int:
        return int(self._one("SELECT count(*) FROM vectors"))

    def vectors_of(self, ids: Collection[str]) -> dict[str, NDArray[np.float32]]:
        """Return the windows of chunks by their content-addressed ids, (W, dim); unknown ids are left out."""
        windows: dict[str, list[bytes]] = {}
        wanted = list(ids)
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            rows = self._rows(
                "SELECT chunks.id, data FROM chunks JOIN vectors ON chunk_row = chunks.row"
                f" WHERE chunks.row IN (SELECT min(row) FROM chunks WHERE id IN ({_marks(some)})"
                ' GROUP BY id) ORDER BY chunks.row, "window"',
                *some,
            )
            for chunk_id, data in rows:
                windows.setdefault(chunk_id, []).append(data)
        return {
            chunk_id: np.frombuffer(b"".join(found), "<f4").reshape(len(found), -1)
            for chunk_id, found in windows.items()
        }

    def windows(self, row: int) -> NDArray[np.float32]:
        """Return the vectors of one chunk, (W, dim), as they stand there: of unit length or not."""
        found = self._rows('SELECT data FROM vectors WHERE chunk_row = ? ORDER BY "window"', row)
        blobs = [data for (data,) in found]
        if len({len(data) for data in blobs}) > 1:
            raise damaged(self._database.file, "vectors differ in length")
        return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1 if blobs else 0)

    def without_vectors(self) -> list[int]:
        """Return the rows of chunks that have no vector, ascending."""
        found = self._rows(
            "SELECT row FROM chunks WHERE row NOT IN (SELECT chunk_row FROM vectors) ORDER BY row"
        )
        return [row for (row,) in found]

    def add_vectors(self, rows: Sequence[int], vectors: Sequence[NDArray[np.float32]]) -> None:
        """Give chunks that have none their windows, (W, dim) unit rows each. ValueError as in `put_document`."""
        windows = [checked(array) for array in vectors]
        with self._database.writing() as connection:
            _check_dim(connection, windows)
            for row, array in zip(rows, windows, strict=True):
                connection.executemany(
                    'INSERT INTO vectors (chunk_row, "window", data) VALUES (?, ?, ?)',
                    [(row, number, window.tobytes()) for number, window in enumerate(array)],
                )
            step(connection)

    def vector_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all vectors, ascending, and the chunk row of each: (N,), (N,)."""
        # Unordered: read from an index alone.
        with self._database.cursor("SELECT id, chunk_row FROM vectors") as rows:
            table = np.fromiter(rows, np.dtype((np.int64, 2)))
        ids, chunk_rows = table[np.argsort(table[:, 0])].T.copy()
        return ids, chunk_rows

    # --- words ---

    def by_words(
        self, terms: Sequence[str], n: int, allowed: Collection[int] | None = None
    ) -> list[tuple[int, float]]:
        """Return the n best (chunk row, BM25) for these words, best first; see `wordsearch.best`."""
        with self.snapshot():
            return wordsearch.best(self._rows, terms, n, allowed)

    def frequencies(self, terms: Iterable[str]) -> dict[str, int]:
        """Return in how many chunks each word stands; see `wordsearch.frequencies`."""
        with self.snapshot():
            return wordsearch.frequencies(self._rows, terms)

    # --- what filters ask for ---

    def document_facts(self) -> list[tuple[int, Facts]]:
        """Return the row of each document and what is known of it."""
        rows = self._rows("SELECT row, path, media, title, meta FROM documents")
        return [(row, _facts(*columns, is_document=True)) for row, *columns in rows]

    def chunk_facts(
        self, *, row: int | None = None, documents: Collection[int] | None = None
    ) -> list[tuple[int, Facts]]:
        """Return the row of each chunk, of one, or of those of some documents, and what is known of it."""
        sql = (
            "SELECT chunks.row, document_row, path, media, documents.title, meta, page, heading,"
            " part FROM chunks JOIN documents ON documents.row = document_row"
        )
        if row is not None:
            found = self._rows(sql + " WHERE chunks.row = ?", row)
        elif documents is not None:
            where = " WHERE document_row IN (SELECT value FROM json_each(?))"
            found = self._rows(sql + where, json.dumps(list(documents)))
        else:
            found = self._rows(sql)
        known: dict[int, Facts] = {}
        facts = []
        for chunk_row, number, *columns, page, heading, part in found:
            one = known.get(number) or known.setdefault(number, _facts(*columns))
            facts.append(
                (chunk_row, Facts(one.path, one.media, one.title, one.meta, page, heading, part))
            )
        return facts

    def rows_of(self, documents: Collection[int]) -> list[int]:
        """Return the rows of the chunks of documents, by the documents' rows."""
        sql = "SELECT row FROM chunks WHERE document_row IN (SELECT value FROM json_each(?))"
        return [row for (row,) in self._rows(sql, json.dumps(list(documents)))]

    def rows_with(self, chunk_id: str) -> list[tuple[int, str]]:
        """Return the row and document of each chunk with this content."""
        sql = "SELECT chunks.row, path FROM chunks JOIN documents ON documents.row = document_row"
        rows = self._rows(sql + " WHERE id = ? ORDER BY path", chunk_id)
        return [(row, _decode(path)) for row, path in rows]

    # --- KV ---

    def set_kv(self, rows_keys: Sequence[tuple[int, str]]) -> None:
        """Note the latest KV key of chunks; rows that are gone meanwhile are passed over."""
        with self._database.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO kv (chunk_row, key) SELECT row, ?2 FROM chunks WHERE row = ?1",
                rows_keys,
            )

    def clear_kv(self) -> None:
        """Forget every KV key: what there is was made with another model or in another mode."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM kv")

    def kv_key(self, row: int) -> str | None:
        rows = self._rows("SELECT key FROM kv WHERE chunk_row = ?", row)
        return str(rows[0][0]) if rows else None

    def kv_rows(self) -> list[tuple[str, int, str]]:
        """Return (path, chunk row, key) of every chunk whose KV was noted."""
        rows = self._rows(
            "SELECT path, chunk_row, key FROM kv JOIN chunks ON chunks.row = chunk_row"
            " JOIN documents ON documents.row = document_row"
        )
        return [(_decode(path), row, key) for path, row, key in rows]

    def chunk_keys(self) -> list[tuple[int, int, str | None]]:
        """Return (row, tokens, KV key) of every chunk in reading order: the texts are not read."""
        return self._rows(
            "SELECT chunks.row, n_tokens, key FROM documents JOIN chunks ON document_row = documents.row"
            " LEFT JOIN kv ON chunk_row = chunks.row ORDER BY path, ordinal"
        )

    def kv_keys(self) -> set[str]:
        return {key for (key,) in self._rows("SELECT DISTINCT key FROM kv")}

    # --- uses ---

    def uses(self) -> dict[int, int]:
        """Return how often each chunk was retrieved, by row; those that never were are left out."""
        return dict(
            self._rows("SELECT chunks.row, count FROM uses JOIN chunks ON chunks.id = chunk_id")
        )

    def uses_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return how often texts were retrieved, by chunk id; those that never were are left out."""
        found = (self._rows("SELECT chunk_id, count FROM uses WHERE chunk_id = ?", i) for i in ids)
        return {chunk_id: count for rows in found for chunk_id, count in rows}

    def retrievals(self) -> tuple[int, int]:
        """Return how many passages were retrieved so far, and how many of them had their KV then."""
        columns = "coalesce(sum(count), 0), coalesce(sum(with_kv), 0)"
        ((count, with_kv),) = self._rows(f"SELECT {columns} FROM uses")
        return count, with_kv

    def kv_worth(self) -> dict[str, int]:
        """Return for every noted KV key how often its chunk was retrieved."""
        return dict(
            self._rows(
                "SELECT key, max(coalesce(count, 0)) FROM kv JOIN chunks ON chunks.row = chunk_row"
                " LEFT JOIN uses ON chunk_id = chunks.id GROUP BY key"
            )
        )

    def note_uses(self, counts: Mapping[tuple[str, bool], int], now: str) -> None:
        """Add retrievals, by chunk id and whether KV was there. The generation stays as it is.

        LockedError at once, and nothing is counted, while another process writes.
        """
        rows = [(chunk_id, n, n * had_kv, now) for (chunk_id, had_kv), n in counts.items()]
        if not rows:
            return
        with self._database.writing(wait=False) as connection:
            connection.executemany(
                "INSERT INTO uses VALUES (?, ?, ?, ?) ON CONFLICT (chunk_id) DO UPDATE SET"
                " count = count + excluded.count, with_kv = with_kv + excluded.with_kv,"
                " last = excluded.last",
                rows,
            )

    # --- reading ---

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.rows(sql, values)

    def _one(self, sql: str) -> Any:
        return self._rows(sql)[0][0]

    def _chunks(self, where: str, *values: object) -> list[tuple[int, Chunk]]:
        """Return chunks, each proven by its content-addressed id: text that changed on disk is damage."""
        found = []
        for row, *columns, stored_id in self._rows(_CHUNK + where, *values):
            chunk = _chunk(columns)
            if chunk.id != stored_id:
                raise changed(self._database.file, chunk.document)
            found.append((row, chunk))
        return found


def changed(file: Path, path: str) -> DamagedError:
    """The error for text that is not what was put: reading its document again mends it."""
    return DamagedError(
        f"the index is damaged: {file}: the text of a passage of {path} has changed",
        f"read it again, and nothing else: epicrag ingest {shlex.quote(path)}",
    )


def _aside(number: int) -> bytes:
    """A name that no document can have: a path holds no NUL."""
    return b"\0%d" % number


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _decode(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _facts(
    path: bytes, media: str, title: str | None, meta: str, *, is_document: bool = False
) -> Facts:
    return Facts(_decode(path), media, title, _meta(meta), is_document=is_document)


def _meta(text: str) -> dict[str, MetaValue]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(text).items()
    }


def _document(row: tuple[Any, ...]) -> DocumentRow:
    number, path, digest, title, media, meta, *rest = row
    return DocumentRow(number, _decode(path), digest, title, media, _meta(meta), *rest)


def _chunk(columns: Sequence[Any]) -> Chunk:
    path, ordinal, start, end, text, title, page, first, last, heading, part, *rest = columns
    cell_first, cell_last, n_tokens, table = rest
    lines = None if first is None else (first, last)
    cells = None if cell_first is None else (cell_first, cell_last)
    place = Place(page, lines, heading, part, cells)
    return Chunk(_decode(path), ordinal, start, end, text, title, place, n_tokens, table)


def _put(
    connection: sqlite3.Connection,
    document: Document,
    chunks: Sequence[Chunk],
    vectors: Sequence[NDArray[np.float32]],
) -> list[int]:
    """Replace one document within a transaction; see `Catalog.put_document`."""
    if len(chunks) != len(vectors):
        raise ValueError(f"{len(chunks)} chunks but {len(vectors)} groups of vectors")
    windows = [checked(array) for array in vectors]
    _check_dim(connection, windows)
    connection.execute("DELETE FROM documents WHERE path = ?", (_encode(document.path),))
    row = connection.execute(
        "INSERT INTO documents (path, digest, title, media, meta, reading) VALUES (?, ?, ?, ?, ?, ?)",
        (
            _encode(document.path),
            document.digest,
            document.title,
            document.media,
            json.dumps(dict(document.meta), ensure_ascii=False, sort_keys=True),
            document.reading,
        ),
    ).lastrowid
    assert row is not None
    return [_insert(connection, row, *pair) for pair in zip(chunks, windows, strict=True)]


def _insert(
    connection: sqlite3.Connection, document_row: int, chunk: Chunk, windows: NDArray[np.float32]
) -> int:
    place = chunk.place
    lines, cells = place.lines or (None, None), place.cells or (None, None)
    span = (document_row, chunk.ordinal, chunk.start, chunk.end)
    where = (place.page, *lines, place.heading, place.part, *cells)
    values = (*span, chunk.text, chunk.title, *where, chunk.n_tokens, chunk.table, chunk.id)
    row = connection.execute(_INSERT_CHUNK, values).lastrowid
    assert row is not None
    connection.executemany(
        'INSERT INTO vectors (chunk_row, "window", data) VALUES (?, ?, ?)',
        [(row, number, window.tobytes()) for number, window in enumerate(windows)],
    )
    return row


def _exists(connection: sqlite3.Connection, path: str) -> bool:
    found = connection.execute("SELECT 1 FROM documents WHERE path = ?", (_encode(path),))
    return found.fetchone() is not None


def step(connection: sqlite3.Connection) -> None:
    """Count a change to documents or vectors, within its transaction: readers look at this."""
    connection.execute("UPDATE state SET generation = generation + 1, stamp = hex(randomblob(16))")
    connection.execute("INSERT INTO history SELECT generation, stamp FROM state")
    connection.execute(
        "DELETE FROM history WHERE generation <= (SELECT generation FROM state) - ?", (_HISTORY,)
    )


def checked(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors as little-endian float32, (N, dim); ValueError unless unit rows."""
    array = np.ascontiguousarray(windows, dtype="<f4")
    if array.ndim != 2 or not _is_unit(array):
        raise ValueError(f"vectors must be finite rows of unit length: {array.shape}")
    return array


def _is_unit(array: NDArray[np.float32]) -> bool:
    """Return whether all rows are of unit length: false for NaN and infinity."""
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", array, array))
        return bool((np.abs(lengths - 1) <= _UNIT_TOLERANCE).all())


def _check_dim(connection: sqlite3.Connection, windows: Sequence[NDArray[np.float32]]) -> None:
    dims = {array.shape[1] for array in windows if len(array)}
    dims |= {n // 4 for (n,) in connection.execute("SELECT length(data) FROM vectors LIMIT 1")}
    if len(dims) > 1:
        raise ValueError(f"vectors of different dimensions in one index: {sorted(dims)}")
