"""A SQLite file opened safely: WAL, explicit transactions, and errors a user can act on."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from epicrag.errors import (
    DamagedError,
    DeviceError,
    EpicragError,
    IndexEmptyError,
    LockedError,
    UsageError,
)
from epicrag.index import migrations

_BUSY_SECONDS = 5.0
_QUICK_CHECK_BYTES = 8 << 20  # about 20 ms; damage in larger files shows when it is read


class Database:
    """One connection, usable from several threads one after another; raises only EpicragError."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.file = file
        self._place = file.absolute()  # the process may change its folder
        self._inode = _inode(self._place)
        self._connection = connection
        self._mutex = threading.RLock()
        self._depth = 0  # of transactions: a snapshot may be opened inside another

    @classmethod
    def open(cls, file: Path, *, create: bool, schema: migrations.Schema | None = None) -> Database:
        """Open, check and migrate: a catalog, unless another schema is given.

        IndexEmptyError when there is nothing and `create` is false.
        """
        if not create and not _holds_anything(file):
            raise IndexEmptyError(
                f"there is no index at {file.parent}", "run `epicrag ingest PATH`"
            )
        with translated(file):
            if create:
                file.parent.mkdir(parents=True, exist_ok=True)
            _check_magic(file)
            connection = _connect(file)
            try:
                _prepare(connection, file, create, schema)
            except BaseException:
                connection.close()
                raise
        return cls(file, connection)

    def close(self) -> None:
        with self._mutex:
            self._connection.close()

    def refuse_removed(self) -> None:
        """IndexEmptyError where the file has been removed or replaced since: what is written to it is lost."""
        with translated(self.file):
            is_there = _inode(self._place) == self._inode
        if not is_there:
            raise IndexEmptyError(
                f"the index at {self.file.parent} was removed or replaced while it was in use",
                "run `epicrag ingest PATH` to make it anew; what was in it is lost",
            )

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query: a consistent answer, whoever writes meanwhile."""
        with self._mutex, translated(self.file):
            return self._connection.execute(sql, values).fetchall()

    def faults(self, *, thorough: bool) -> list[str]:
        """Return what SQLite finds wrong with the file, indexes compared if `thorough`; [] when it is sound."""
        check = "integrity_check" if thorough else "quick_check"
        try:
            found = [str(row[0]) for row in self.rows(f"PRAGMA {check}(20)")]
            foreign = self.rows("PRAGMA foreign_key_check")
        except DamagedError as error:
            return [error.message]
        lost = [
            f"{table} row {row} refers to nothing in {parent}" for table, row, parent, _ in foreign
        ]
        return [fault for fault in found if fault != "ok"] + lost

    def free_bytes(self) -> int:
        """Return the bytes of the file's pages that hold nothing."""
        return int(self.rows("PRAGMA freelist_count")[0][0]) * int(
            self.rows("PRAGMA page_size")[0][0]
        )

    def compact(self) -> None:
        """Write the file anew without empty pages: what was deleted is then nowhere in it."""
        self.rows("VACUUM")
        self.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def cursor(self, sql: str, values: Sequence[object] = ()) -> Iterator[sqlite3.Cursor]:
        """Walk over the rows of one query without holding them all; nothing else runs within."""
        with self._mutex, translated(self.file):
            yield self._connection.execute(sql, values)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads within see one state of the database."""
        with self._mutex:
            if not self._depth:
                self.rows("BEGIN")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self.rows("COMMIT")

    @contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or, on any error, nothing.

        LockedError where another process writes: after some seconds or, without `wait`, at once.
        IndexEmptyError where the file is no longer there.
        """
        with self._mutex, translated(self.file):
            assert not self._depth, "a snapshot only reads"
            self.refuse_removed()
            self._begin(wait)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error is the one to tell
                    self._connection.execute("ROLLBACK")
                raise

    def _begin(self, wait: bool) -> None:
        if wait:
            self._connection.execute("BEGIN IMMEDIATE")
            return
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")


@contextmanager
def translated(file: Path) -> Iterator[None]:
    """Raise what SQLite and the system say as EpicragError, with the file and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translation(error, file) or error from error
    except OSError as error:
        raise UsageError(
            f"the index at {file.parent} cannot be used: {error.strerror or error}",
            "check the folder's permissions, or choose another with --index",
        ) from error


def damaged(file: Path, detail: str) -> DamagedError:
    return DamagedError(
        f"the index is damaged: {file}: {detail}",
        f"move {file.parent} away and run `epicrag ingest PATH` again; your documents are untouched",
    )


def _translation(error: sqlite3.Error, file: Path) -> EpicragError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
    if "no such module: fts5" in str(error):
        return UsageError(
            f"this Python's SQLite ({sqlite3.sqlite_version}) has no full-text search (FTS5)",
            "use a Python whose sqlite3 has it, as those of python.org and of the distributions do",
        )
    # No such table or column; or a header that promises what SQLite has never had.
    torn = ("no such", "unsupported file format")
    is_torn = code == sqlite3.SQLITE_ERROR and str(error).startswith(torn)
    if is_torn or code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return damaged(file, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LockedError(f"another process is writing to {file}", "try again when it is done")
    if code == sqlite3.SQLITE_FULL:
        return DeviceError(
            f"the disk is full: nothing more can be written to {file}",
            "free some space and run it again: what was added before stays, and the next run goes on",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
        return UsageError(
            f"the index at {file.parent} cannot be used: {error}",
            "check that the folder can be written to and the disk is well, or choose another"
            " with --index; what was stored before stays",
        )
    return None


def _inode(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _holds_anything(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:  # let opening it say why
        return True


def _check_magic(file: Path) -> None:
    """Refuse a file that is no SQLite database before SQLite looks for its journals.

    SQLite itself looks, into the file as it lies there. It must never be opened by anything else: closing that
    would free the locks of every connection that this process has to it, and the next writer elsewhere, alone
    as it believes, would take their log away.
    """
    if not _holds_anything(file):
        return
    with closing(sqlite3.connect(_uri(file) + "?immutable=1", uri=True)) as connection:
        try:
            connection.execute("PRAGMA schema_version")
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
                raise damaged(file, "it is not a SQLite file") from error


def _uri(file: Path) -> str:
    return "file:" + quote(os.fsencode(file.absolute()))


def _connect(file: Path) -> sqlite3.Connection:
    """Connect; a folder that cannot be written to is opened as it lies there, to read only."""
    frozen = file.exists() and not _is_writable(file.parent) and not _is_in_use(file)
    connection = sqlite3.connect(
        _uri(file) + ("?immutable=1" if frozen else ""),
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.create_function("words_of", 1, _words_of, deterministic=True)
    return connection


def _words_of(text: str) -> str:
    from epicrag.index.words import joined

    return joined(text)


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _is_in_use(file: Path) -> bool:
    """Return whether a connection is open, or one that was killed left commits in the log."""
    log, shared = (file.with_name(file.name + suffix) for suffix in ("-wal", "-shm"))
    return shared.exists() or _holds_anything(log)


def _prepare(
    connection: sqlite3.Connection, file: Path, create: bool, schema: migrations.Schema | None
) -> None:
    """Check the database, and bring its schema up to date."""
    if migrations.is_blank(connection):
        if not create:
            raise IndexEmptyError(
                f"there is no index at {file.parent}", "run `epicrag ingest PATH`"
            )
        connection.execute("PRAGMA journal_mode = WAL")
    # With WAL, NORMAL loses at most the last commits in a power cut, and never tears one.
    connection.execute("PRAGMA synchronous = NORMAL")
    if file.stat().st_size <= _QUICK_CHECK_BYTES:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(file, verdict)
    try:
        migrations.migrate(connection, schema)
    except DamagedError as error:
        raise damaged(file, error.message) from error
