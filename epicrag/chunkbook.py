"""The book of chunks that were given over the API: each in its namespace, under an id, with its KV.

Namespaces know nothing of each other: ids, texts and KV of one are never seen, shared or told by another.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from epicrag.errors import (
    DamagedError,
    DeviceError,
    EpicragError,
    IndexEmptyError,
    LockedError,
    UsageError,
)
from epicrag.index.database import Database
from epicrag.index.migrations import Migration, Schema
from epicrag.types import chunk_header

if TYPE_CHECKING:
    from epicrag.index.kvstore import KVStore
    from epicrag.serving.prompt import Piece

FILE_NAME = "chunks.db"
KV_FOLDER = "kv"
FLUSH_SECONDS = 5.0
"""For so long the times of last use may stay in memory."""

_log = logging.getLogger("epicrag")
_ID = re.compile(r"(?!\.+$)[\w.:@+~=-]{1,200}")
_SURROGATE = re.compile("[\ud800-\udfff]")

_SCHEMA = Schema(
    0x65706362,  # "epcb"
    (
        Migration(
            "0001_chunks",
            """
            CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

            -- A row is never changed in its text: what replaces a chunk is a row of its own. The text stands
            -- last: what is read without it does not walk over it.
            CREATE TABLE chunks (
                row INTEGER PRIMARY KEY AUTOINCREMENT,
                namespace TEXT NOT NULL,
                id TEXT NOT NULL,
                named INTEGER NOT NULL,
                before_row INTEGER REFERENCES chunks (row) ON DELETE SET NULL,
                tokens INTEGER NOT NULL,
                bytes INTEGER NOT NULL,
                kv_key TEXT,
                created TEXT NOT NULL,
                used REAL NOT NULL,
                metadata TEXT NOT NULL,
                title TEXT,
                text TEXT NOT NULL,
                UNIQUE (namespace, id)
            );
            CREATE INDEX chunks_by_use ON chunks (namespace, named, used);
            CREATE INDEX chunks_by_key ON chunks (kv_key);
            CREATE INDEX chunks_by_before ON chunks (before_row);
            """,
        ),
    ),
    "a book of chunks",
)

_COLUMNS = """
SELECT this.row, this.namespace, this.id, this.text, this.title, before.id, before.title, before.text,
       this.metadata, this.tokens, this.bytes, this.kv_key, this.created, this.used, this.named
FROM chunks AS this LEFT JOIN chunks AS before ON before.row = this.before_row
"""


class UnknownChunkError(UsageError):
    """No chunk of this id is known in the namespace."""

    code = "unknown_chunk"


class ChunkConflictError(UsageError):
    """The id is taken by a chunk of other content."""

    code = "chunk_conflict"


class ChunksFullError(UsageError):
    """The namespace holds as much as it may."""

    code = "chunks_full"


class UnwritableError(DeviceError):
    """The book can be read, and nothing more is kept in it: a full disk, or a file that is gone."""

    code = "chunks_unwritable"


class Compiler(Protocol):
    """What the book asks of the engine."""

    @property
    def refusal(self) -> str | None: ...
    @property
    def profile(self) -> str: ...
    @property
    def kv_bytes_per_token(self) -> int: ...
    def key_of(self, piece: Piece, mode: str | None = None) -> str: ...
    def compile(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, str, int]]: ...
    def own_keys(self) -> set[str]: ...


class Counter(Protocol):
    def count(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True)
class BookLimits:
    """What one namespace may hold."""

    max_chunks: int = 20_000
    max_bytes: int = 4 << 30
    """Of KV, as the engine stores it."""
    max_chunk_tokens: int | None = None
    """Tokens of one chunk: those of the window."""


@dataclass(frozen=True, slots=True)
class GivenChunk:
    """A chunk as a client gives it. Without an id it gets one by its content."""

    text: str
    id: str | None = None
    title: str | None = None
    before: str | None = None
    """The id of the chunk that stands before it in its document."""
    metadata: Mapping[str, Any] | None = None

    @property
    def model_text(self) -> str:
        """What the model reads: the title as a line above the text, unless the text begins with it."""
        return chunk_header(self.title, None, self.text) + self.text

    @property
    def content_id(self) -> str:
        parts = [self.title or "", self.text, *([self.before] if self.before else [])]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


KVState = Literal["stored", "computed", "none"]


@dataclass(frozen=True, slots=True)
class BookChunk:
    """A chunk of the book."""

    row: int
    """Never used again, also when another chunk takes the id."""
    namespace: str
    id: str
    text: str
    title: str | None
    before: str | None
    before_text: str | None
    """What the model would read of the chunk before it."""
    metadata: Mapping[str, Any]
    tokens: int
    bytes: int
    """Of its KV, as the engine stores it."""
    kv_key: str | None
    created: str
    used: float
    """Seconds since 1970."""
    named: bool
    """Registered, and kept until it is deleted. False: brought along by a request."""
    kv: KVState = "stored"
    """What was done for the call that returned it: "none" where the model's KV cannot be reused."""

    @property
    def model_text(self) -> str:
        return GivenChunk(self.text, title=self.title).model_text

    def piece(self, offset: int | None = None) -> Piece:
        from epicrag.serving.prompt import Piece

        return Piece(self.model_text, self.before_text, namespace=self.namespace, offset=offset)


@dataclass(frozen=True, slots=True)
class ChunkPage:
    """Some chunks in the order they were given, and whether there are more behind them."""

    chunks: tuple[BookChunk, ...]
    has_more: bool


def _go_on() -> None:
    """Nothing ends the work."""


@dataclass(slots=True)
class _Uses:
    """Times of last use that are not written yet."""

    times: dict[int, float] = field(default_factory=dict)
    since: float = 0.0


class ChunkBook:
    """Chunks by namespace and id, in one SQLite file, their KV in a store beside it. For many threads at once.

    What requests brought along leaves again, the least recently used first, when its namespace holds more than
    `limits` allow; chunks that were registered stay until they are deleted.
    """

    def __init__(
        self,
        database: Database,
        engine: Compiler,
        counter: Counter,
        store: KVStore | None,
        limits: BookLimits,
    ) -> None:
        self._database = database
        self._engine = engine
        self._counter = counter
        self._store = store
        self.limits = limits
        self._uses = _Uses()
        self._mutex = threading.RLock()
        self._changes: dict[str, int] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        engine: Compiler,
        counter: Counter,
        store: KVStore | None,
        limits: BookLimits | None = None,
    ) -> ChunkBook:
        """Open or make the book in a folder; KV in `store` that belongs to none of its chunks is freed.

        DamagedError: the file is no book, or unsound. MismatchError: a newer epicrag wrote it.
        """
        database = Database.open(folder / FILE_NAME, create=True, schema=_SCHEMA)
        book = cls(database, engine, counter, store, limits or BookLimits())
        book._settle()
        return book

    def close(self) -> None:
        with self._mutex:
            self._flush_if_possible()
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

    def _settle(self) -> None:
        """KV of another model or mode is forgotten, and what nobody needs is removed from the store."""
        profile = self._engine.profile
        if self._rows("SELECT value FROM settings WHERE name = 'profile'") != [(profile,)]:
            with self._writing() as connection:
                connection.execute("UPDATE chunks SET kv_key = NULL")
                connection.execute(
                    "INSERT OR REPLACE INTO settings VALUES ('profile', ?)", (profile,)
                )
        if self._store is not None:
            keys = self._rows("SELECT DISTINCT kv_key FROM chunks WHERE kv_key IS NOT NULL")
            self._store.gc({key for (key,) in keys} | self._engine.own_keys())

    # --- giving ---

    def put(
        self,
        namespace: str,
        given: Sequence[GivenChunk],
        *,
        replace: bool = False,
        check: Callable[[], object] = _go_on,
    ) -> list[BookChunk]:
        """Register chunks, all or none, and compute their KV where it is not there. In the order given.

        `check` is called between chunks: what it raises ends the work, and the KV computed until then stays.
        Giving the same again changes nothing. ChunkConflictError: other content under a known id, and not
        `replace`. UnknownChunkError: a `before` that is neither known nor given before it. ChunksFullError:
        over the limits.
        """
        rows = self._register(namespace, given, named=True, replace=replace, check=check)
        return self._compiled(self._registered(given, rows), check)

    def bring(
        self, namespace: str, given: Sequence[GivenChunk], check: Callable[[], object] = _go_on
    ) -> list[BookChunk]:
        """Note what a request brings along, in the order given; its KV is computed by what reads it first."""
        rows = self._register(namespace, given, named=False, replace=False, check=check)
        chunks = self._registered(given, rows)
        if self._engine.refusal:
            return chunks
        keyed = [
            chunk if chunk.kv_key else replace(chunk, kv_key=self._engine.key_of(chunk.piece()))
            for chunk in chunks
        ]
        pairs = zip(chunks, keyed, strict=True)
        self._note([(now, now.kv_key or "") for before, now in pairs if now is not before])
        return keyed

    def unkept(self, namespace: str, given: Sequence[GivenChunk]) -> list[BookChunk]:
        """The chunks that `bring` would return, for one request: nothing is noted."""
        now, chunks, above = time.time(), [], dict[str | None, str]()
        for number, one in enumerate(given):
            text, before_text = one.model_text, above.get(one.before)
            above[one.content_id] = text
            tokens = self._counted(self._checked(one))
            chunks.append(
                BookChunk(
                    row=-1 - number,
                    namespace=namespace,
                    id=one.content_id,
                    text=one.text,
                    title=one.title,
                    before=one.before,
                    before_text=before_text,
                    metadata={},
                    tokens=tokens,
                    bytes=tokens * self._engine.kv_bytes_per_token,
                    kv_key=None,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    used=now,
                    named=False,
                    kv="none",
                )
            )
        return chunks

    def _register(
        self,
        namespace: str,
        given: Sequence[GivenChunk],
        *,
        named: bool,
        replace: bool,
        check: Callable[[], object],
    ) -> list[int]:
        checked = [self._checked(chunk) for chunk in given]
        tokens = []
        for chunk in checked:
            check()
            tokens.append(self._counted(chunk))
        _refuse_twice(checked)
        with self._mutex:
            self._flush()
            with self._writing() as connection:
                writer = _Writer(connection, namespace, named, replace)
                pairs = zip(checked, tokens, strict=True)
                size = self._engine.kv_bytes_per_token
                rows = [writer.place(chunk, n, n * size) for chunk, n in pairs]
                doomed = self._make_room(connection, namespace, rows)
            self._changed(namespace)
            self._drop([*writer.lost, *doomed])
        return rows

    def _registered(self, given: Sequence[GivenChunk], rows: Sequence[int]) -> list[BookChunk]:
        """The chunks of the rows just written. ChunkConflictError: one was deleted or replaced meanwhile."""
        chunks = self._of_rows(rows)
        if len(chunks) < len(rows):
            left = {chunk.row for chunk in chunks}
            n = next(n for n, row in enumerate(rows) if row not in left)
            raise ChunkConflictError(
                f"chunk {given[n].id or n + 1} was deleted or replaced while it was registered",
                "register it again",
            )
        return chunks

    def _checked(self, given: GivenChunk) -> GivenChunk:
        """Text that can be kept as it is, and an id that can stand in an address."""
        if not given.text.strip():
            raise UsageError("a chunk has no text", 'give it as "text"')
        text = storable(given.text)
        title = storable(given.title) if given.title else None
        before = storable(given.before) if given.before is not None else None
        clean = GivenChunk(text, given.id, title, before, given.metadata)
        chunk_id = clean.content_id if given.id is None else given.id
        if not _ID.fullmatch(chunk_id):
            raise UsageError(
                f"{chunk_id[:80]!r} cannot be the id of a chunk",
                "use up to 200 letters, digits and any of . _ : @ + ~ = -",
            )
        if before == chunk_id:
            raise UsageError(
                f"chunk {chunk_id} cannot stand before itself", "name another before it"
            )
        return replace(clean, id=chunk_id)

    def _counted(self, chunk: GivenChunk) -> int:
        from epicrag.serving.tokenizer import MOST_CHARS

        text, most = chunk.model_text, self.limits.max_chunk_tokens
        is_surely_long = most is not None and len(text) > most * MOST_CHARS
        tokens = len(text) // MOST_CHARS if is_surely_long else self._counter.count(text)
        if most is not None and tokens > most:
            raise UsageError(
                f"chunk {chunk.id} has {'more than ' * is_surely_long}{tokens:,} tokens, and at most {most:,} "
                "fit the model's window",
                "give it in parts, each with the one before it as `before`",
            )
        return tokens

    def _make_room(
        self, connection: sqlite3.Connection, namespace: str, spared: Sequence[int]
    ) -> list[str]:
        """Evict what was brought along; return the KV keys that may be needed no more."""
        count, size = connection.execute(
            "SELECT count(*), coalesce(sum(bytes), 0) FROM chunks WHERE namespace = ?", (namespace,)
        ).fetchone()
        limits, keys, keep = self.limits, [], set(spared)
        # What stands behind a chunk goes before it: of equal use the latest first.
        for row, nbytes in connection.execute(
            "SELECT row, bytes FROM chunks WHERE namespace = ? AND NOT named ORDER BY used, row DESC",
            (namespace,),
        ).fetchall():
            if count <= limits.max_chunks and size <= limits.max_bytes:
                break
            if row not in keep:
                keys += _remove(connection, row)
                count, size = count - 1, size - nbytes
        if count > limits.max_chunks or size > limits.max_bytes:
            raise ChunksFullError(
                f"at most {limits.max_chunks:,} chunks and {limits.max_bytes / 2**20:,.0f} MB of KV are kept "
                f"for one client, and this would make {count:,} and {size / 2**20:,.0f} MB",
                "delete chunks (DELETE /v1/chunks/{id}), send less at once, or raise the server's limits",
            )
        return keys

    def _compiled(
        self, chunks: Sequence[BookChunk], check: Callable[[], object]
    ) -> list[BookChunk]:
        """Compute the KV that is missing, note its keys, and say what was done."""
        if self._engine.refusal:
            return [_with(chunk, None, "none") for chunk in chunks]
        done: dict[int, BookChunk] = {}
        try:
            for index, key, n_tokens in self._engine.compile([c.piece() for c in chunks]):
                done[index] = _with(chunks[index], key, "computed" if n_tokens else "stored")
                check()
        finally:
            self._note([(chunk, chunk.kv_key) for chunk in done.values() if chunk.kv_key])
        return [done.get(index, chunk) for index, chunk in enumerate(chunks)]

    def _note(self, keys: Sequence[tuple[BookChunk, str]]) -> None:
        """Note KV keys. What was deleted while its KV was computed gets none, and its KV goes."""
        if not keys:
            return
        with self._mutex:
            lost = []
            with self._writing() as connection:
                for chunk, key in keys:
                    noted = connection.execute(
                        "UPDATE chunks SET kv_key = ? WHERE row = ? AND"
                        " (SELECT before.id FROM chunks AS before WHERE before.row = chunks.before_row) IS ?",
                        (key, chunk.row, chunk.before),
                    )
                    if not noted.rowcount:
                        lost.append(key)
            self._drop(lost)

    def _drop(self, keys: Iterable[str]) -> None:
        """Remove KV that no chunk needs any more."""
        for key in set(keys):
            needed = self._rows("SELECT 1 FROM chunks WHERE kv_key = ? LIMIT 1", key)
            if self._store is not None and not needed:
                self._store.delete(key)

    # --- finding ---

    def get(self, namespace: str, chunk_id: str) -> BookChunk:
        """Return a chunk. UnknownChunkError, which names the id, where the namespace has none."""
        found = self._chunks(
            "WHERE this.namespace = ? AND this.id = ?", namespace, storable(chunk_id)
        )
        if not found:
            raise unknown(chunk_id)
        return found[0]

    def use(self, namespace: str, chunk_id: str) -> BookChunk:
        """`get`, and count it as used now."""
        chunk = self.get(namespace, chunk_id)
        self.note_use([chunk.row])
        return chunk

    def page(self, namespace: str, *, limit: int = 100, after: str | None = None) -> ChunkPage:
        """Return chunks in the order they were given, those behind `after`."""
        start = self.get(namespace, after).row if after is not None else 0
        found = self._chunks(
            "WHERE this.namespace = ? AND this.row > ? ORDER BY this.row LIMIT ?",
            namespace,
            start,
            limit + 1,
        )
        return ChunkPage(tuple(found[:limit]), len(found) > limit)

    def note_use(self, rows: Iterable[int]) -> None:
        """Count chunks as used now; written a little later."""
        with self._mutex:
            now = time.time()
            self._uses.times.update(dict.fromkeys(rows, now))
            if now - self._uses.since > FLUSH_SECONDS:
                self._flush_if_possible()

    def rows(self, namespace: str) -> dict[int, int]:
        """Return the rows of a namespace with their tokens: the texts are not read."""
        return dict(self._rows("SELECT row, tokens FROM chunks WHERE namespace = ?", namespace))

    def read(self, namespace: str, rows: Iterable[int]) -> list[BookChunk]:
        """Return chunks by their rows; those that are gone, or of another namespace, are left out."""
        return [chunk for chunk in self._of_rows(rows) if chunk.namespace == namespace]

    def version(self, namespace: str) -> tuple[int, int]:
        """Changes whenever the chunks of a namespace may have."""
        ((others,),) = self._rows("PRAGMA data_version")
        return self._changes.get(namespace, 0), int(others)

    # --- taking away ---

    def delete(self, namespace: str, chunk_id: str) -> BookChunk:
        """Forget a chunk, and its KV unless another chunk needs it. UnknownChunkError where there is none.

        A chunk that stood behind it in its document stays, and its KV is computed again when it is used.
        """
        with self._mutex:
            chunk = self.get(namespace, chunk_id)
            try:
                keys = self._removed(chunk)
            except UnwritableError:
                if not self._freed(chunk):
                    raise
                keys = self._removed(chunk)
            self._changed(namespace)
            self._drop(keys)
        return chunk

    def _removed(self, chunk: BookChunk) -> list[str]:
        with self._writing() as connection:
            return _remove(connection, chunk.row)

    def _freed(self, chunk: BookChunk) -> bool:
        """Free the KV that only this chunk needs: a full disk needs room even to forget. Whether there was any."""
        needed = self._rows("SELECT 1 FROM chunks WHERE kv_key = ? LIMIT 2", chunk.kv_key)
        if self._store is None or chunk.kv_key is None or len(needed) > 1:
            return False
        self._store.delete(chunk.kv_key)
        return True

    def forget(self, namespace: str) -> int:
        """Forget all of a namespace; return how many chunks that were."""
        with self._mutex:
            with self._writing() as connection:
                keys = connection.execute(
                    "SELECT kv_key FROM chunks WHERE namespace = ? AND kv_key IS NOT NULL",
                    (namespace,),
                ).fetchall()
                gone = connection.execute("DELETE FROM chunks WHERE namespace = ?", (namespace,))
            self._changed(namespace)
            self._drop(key for (key,) in keys)
            return gone.rowcount

    # --- the file ---

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. UnwritableError where the file is gone or takes no more; what else goes wrong is raised."""
        try:
            with self._database.writing() as connection:
                yield connection
        except IndexEmptyError as error:
            raise UnwritableError(
                f"the chunks of clients in {self._database.file.parent} were removed or replaced under the "
                "running server",
                "restart the server, and register them again: what was in there is lost",
            ) from error
        except (LockedError, DamagedError):
            raise
        except EpicragError as error:
            if not isinstance(error.__cause__, sqlite3.Error | OSError):
                raise
            raise UnwritableError(
                f"nothing more can be kept in {self._database.file}: {error.__cause__}",
                "free some space, or see that the folder can be written to: what was stored before stays",
            ) from error

    def _changed(self, namespace: str) -> None:
        self._changes[namespace] = self._changes.get(namespace, 0) + 1

    def _flush_if_possible(self) -> None:
        """Times of use are worth no error."""
        try:
            self._flush()
        except EpicragError as error:
            _log.warning("when chunks were used is not noted: %s", error)

    def _flush(self) -> None:
        uses, self._uses = self._uses.times, _Uses(since=time.time())
        if uses:
            with self._writing() as connection:
                pairs = [(used, row) for row, used in uses.items()]
                connection.executemany("UPDATE chunks SET used = ? WHERE row = ?", pairs)

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.rows(sql, values)

    def _chunks(self, where: str, *values: object) -> list[BookChunk]:
        return [_chunk(row) for row in self._rows(_COLUMNS + where, *values)]

    def _of_rows(self, rows: Iterable[int]) -> list[BookChunk]:
        """Chunks in the order of their rows as given; those that are gone are left out."""
        wanted = list(rows)
        where = "WHERE this.row IN (SELECT value FROM json_each(?))"
        found = {chunk.row: chunk for chunk in self._chunks(where, json.dumps(wanted))}
        return [found[row] for row in wanted if row in found]


def _refuse_twice(given: Sequence[GivenChunk]) -> None:
    """ChunkConflictError where two of the chunks that come together have one id, and are not the same."""
    known: dict[str, GivenChunk] = {}
    for chunk in given:
        same = known.setdefault(chunk.id or "", chunk)
        if (same.text, same.title, same.before) != (chunk.text, chunk.title, chunk.before):
            raise ChunkConflictError(
                f"two of the chunks have the id {chunk.id} and other content",
                "give each its own id",
            )


@dataclass(slots=True)
class _Writer:
    """Places chunks of one namespace within a transaction."""

    connection: sqlite3.Connection
    namespace: str
    named: bool
    replace: bool
    now: float = field(default_factory=time.time)
    """One time for all: what is given together is used together."""
    lost: list[str] = field(default_factory=list)
    """KV keys that may be needed no more."""

    def place(self, chunk: GivenChunk, tokens: int, nbytes: int) -> int:
        """Return the row of a chunk, made anew unless the very same is known."""
        before_row = self._find(chunk.before) if chunk.before is not None else None
        known = self.connection.execute(
            "SELECT row, text, title, before_row, named FROM chunks WHERE namespace = ? AND id = ?",
            (self.namespace, chunk.id),
        ).fetchone()
        if known is None:
            return self._insert(chunk, before_row, tokens, nbytes)
        row, *content, named = known
        if content != [chunk.text, chunk.title, before_row]:
            # An id made of content says that it is the same: only what stood before it has gone meanwhile.
            if not self.replace and chunk.id != chunk.content_id:
                raise ChunkConflictError(
                    f"the id {chunk.id} is taken by a chunk of other content",
                    'give another id, or "replace": true',
                )
            return self._replace(row, chunk, before_row, tokens, nbytes)
        self.connection.execute(
            "UPDATE chunks SET used = ?, named = ?, metadata = coalesce(?, metadata) WHERE row = ?",
            (self.now, int(named or self.named), _json(chunk.metadata), row),
        )
        return int(row)

    def _find(self, chunk_id: str) -> int:
        found = self.connection.execute(
            "SELECT row FROM chunks WHERE namespace = ? AND id = ?",
            (self.namespace, chunk_id),
        ).fetchone()
        if found is None:
            raise unknown(chunk_id)
        return int(found[0])

    def _insert(self, chunk: GivenChunk, before_row: int | None, tokens: int, nbytes: int) -> int:
        made = self.connection.execute(
            "INSERT INTO chunks (namespace, id, named, before_row, tokens, bytes, created, used, metadata,"
            " title, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.namespace,
                chunk.id,
                int(self.named),
                before_row,
                tokens,
                nbytes,
                datetime.now(UTC).isoformat(timespec="seconds"),
                self.now,
                _json(chunk.metadata) or "{}",
                chunk.title,
                chunk.text,
            ),
        ).lastrowid
        assert made is not None
        return made

    def _replace(
        self, row: int, chunk: GivenChunk, before_row: int | None, tokens: int, nbytes: int
    ) -> int:
        """Put another chunk in a row's place; what stands behind it stands behind the new one."""
        run = self.connection.execute
        run("UPDATE chunks SET id = ? WHERE row = ?", (f"\0{row}", row))
        made = self._insert(chunk, None if before_row == row else before_row, tokens, nbytes)
        behind = run("SELECT row FROM chunks WHERE before_row = ?", (row,)).fetchall()
        self.lost += _remove(self.connection, row)
        run(
            "UPDATE chunks SET before_row = ? WHERE row IN (SELECT value FROM json_each(?))",
            (made, json.dumps([number for (number,) in behind])),
        )
        return made


def storable(text: str) -> str:
    """Text that can be kept as UTF-8: as the tokenizer reads it, too."""
    return _SURROGATE.sub("\ufffd", text)


def unknown(chunk_id: str) -> UnknownChunkError:
    return UnknownChunkError(
        f"no chunk {chunk_id[:200]!r} is known", "register it first: POST /v1/chunks"
    )


def _remove(connection: sqlite3.Connection, row: int) -> list[str]:
    """Delete a row; return its KV key and those of the chunks that were compiled behind it."""
    keys = connection.execute(
        "SELECT kv_key FROM chunks WHERE (row = ?1 OR before_row = ?1) AND kv_key IS NOT NULL",
        (row,),
    ).fetchall()
    connection.execute("UPDATE chunks SET kv_key = NULL WHERE before_row = ?", (row,))
    connection.execute("DELETE FROM chunks WHERE row = ?", (row,))
    return [key for (key,) in keys]


def _chunk(columns: Sequence[Any]) -> BookChunk:
    row, namespace, chunk_id, text, title, before, before_title, before_text, *rest = columns
    metadata, tokens, nbytes, kv_key, created, used, named = rest
    above = None
    if before is not None:
        above = GivenChunk(before_text, title=before_title).model_text
    return BookChunk(
        row,
        namespace,
        chunk_id,
        text,
        title,
        before,
        above,
        json.loads(metadata),
        tokens,
        nbytes,
        kv_key,
        created,
        used,
        bool(named),
    )


def _with(chunk: BookChunk, key: str | None, kv: KVState) -> BookChunk:
    return replace(chunk, kv_key=key, kv=kv)


def _json(metadata: Mapping[str, Any] | None) -> str | None:
    if metadata is None:
        return None
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the metadata of a chunk is not JSON: {error}") from error
    return storable(text)
