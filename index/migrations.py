"""The catalog's schema as an ordered list of steps, each applied once and never edited again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from epicrag.errors import DamagedError, MismatchError

APPLICATION_ID = 0x65706963  # "epic", in the header of the file: other SQLite files are refused


class Migration(NamedTuple):
    name: str
    script: str
    """Statements, each ended by a semicolon; none within comments. They may call `words_of`."""


_WORDS = """
        -- The words of every chunk, as `words_of` makes them: a function of ours, which every connection
        -- has. The triggers keep them equal to the chunks, whoever writes and however chunks go.
        CREATE VIRTUAL TABLE words USING fts5(head, body, tokenize = 'ascii');
        CREATE VIRTUAL TABLE words_vocabulary USING fts5vocab(words, row);
        CREATE TRIGGER words_insert AFTER INSERT ON chunks BEGIN
            INSERT INTO words (rowid, head, body) VALUES (
                new.row,
                words_of(coalesce(new.title, '') || ' ' || coalesce(new.heading, '')),
                words_of(coalesce(new.table_head, '') || ' ' || new.text)
            );
        END;
        CREATE TRIGGER words_delete AFTER DELETE ON chunks BEGIN
            DELETE FROM words WHERE rowid = old.row;
        END;
        INSERT INTO words (rowid, head, body)
            SELECT row,
                   words_of(coalesce(title, '') || ' ' || coalesce(heading, '')),
                   words_of(coalesce(table_head, '') || ' ' || text)
            FROM chunks;
        """
_NO_WORDS = """
        DROP TRIGGER IF EXISTS words_insert;
        DROP TRIGGER IF EXISTS words_delete;
        DROP TABLE IF EXISTS words_vocabulary;
        DROP TABLE IF EXISTS words;
"""

MIGRATIONS = (
    Migration(
        "0001_catalog",
        """
        -- `stamp` is new with every change: two catalogs that merely count alike differ in it.
        CREATE TABLE state (
            only INTEGER PRIMARY KEY CHECK (only = 1),
            generation INTEGER NOT NULL,
            stamp TEXT NOT NULL
        );
        INSERT INTO state VALUES (1, 0, hex(randomblob(16)));

        CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

        -- A path is bytes: file names need not be UTF-8.
        CREATE TABLE documents (
            row INTEGER PRIMARY KEY AUTOINCREMENT,
            path BLOB NOT NULL UNIQUE,
            digest TEXT NOT NULL,
            title TEXT,
            media TEXT NOT NULL
        );

        -- The text stands last: what is read without it does not walk over it.
        CREATE TABLE chunks (
            row INTEGER PRIMARY KEY AUTOINCREMENT,
            document_row INTEGER NOT NULL REFERENCES documents (row) ON DELETE CASCADE,
            ordinal INTEGER NOT NULL,
            id TEXT NOT NULL,
            n_tokens INTEGER NOT NULL,
            start INTEGER NOT NULL,
            "end" INTEGER NOT NULL,
            page INTEGER,
            line_first INTEGER,
            line_last INTEGER,
            heading TEXT,
            title TEXT,
            text TEXT NOT NULL,
            UNIQUE (document_row, ordinal)
        );
        CREATE INDEX chunks_by_id ON chunks (id);
        CREATE INDEX chunks_by_size ON chunks (document_row, n_tokens);

        -- AUTOINCREMENT: an id that FAISS may still know is never given to another vector.
        CREATE TABLE vectors (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            chunk_row INTEGER NOT NULL REFERENCES chunks (row) ON DELETE CASCADE,
            "window" INTEGER NOT NULL,
            data BLOB NOT NULL,
            UNIQUE (chunk_row, "window")
        );

        CREATE TABLE kv (
            chunk_row INTEGER PRIMARY KEY REFERENCES chunks (row) ON DELETE CASCADE,
            key TEXT NOT NULL
        );
        """,
    ),
    Migration(
        "0002_places",
        """
        -- Places that are neither pages nor lines, the heads of tables that were cut, and what a document
        -- says of itself, as JSON.
        ALTER TABLE chunks ADD COLUMN part TEXT;
        ALTER TABLE chunks ADD COLUMN cell_first TEXT;
        ALTER TABLE chunks ADD COLUMN cell_last TEXT;
        ALTER TABLE chunks ADD COLUMN table_head TEXT;
        ALTER TABLE documents ADD COLUMN meta TEXT NOT NULL DEFAULT '{}';
        """,
    ),
    Migration("0003_words", _WORDS),
    Migration(
        "0004_uses",
        """
        -- How often each text was retrieved, and how often its KV was there then. By the chunk's id, which is
        -- made of its content: a document that is read again keeps its counts.
        CREATE TABLE uses (
            chunk_id TEXT PRIMARY KEY,
            count INTEGER NOT NULL,
            with_kv INTEGER NOT NULL,
            last TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX kv_by_key ON kv (key);
        """,
    ),
    Migration(
        "0005_staging",
        """
        -- Vectors of another embedder, a row a chunk with all its windows, until every chunk has some.
        CREATE TABLE staging (
            chunk_row INTEGER PRIMARY KEY REFERENCES chunks (row) ON DELETE CASCADE,
            "windows" INTEGER NOT NULL,
            data BLOB NOT NULL
        );
        """,
    ),
    Migration(
        "0006_sources",
        """
        -- Which sitemap or address led to a document, and what spares fetching it again. By path and not by
        -- row: a document that is read again is a new row.
        CREATE TABLE origins (
            path BLOB NOT NULL,
            root TEXT NOT NULL,
            asked TEXT NOT NULL,
            digest TEXT NOT NULL,
            etag TEXT NOT NULL,
            modified TEXT NOT NULL,
            PRIMARY KEY (path, root)
        ) WITHOUT ROWID;
        """,
    ),
    Migration(
        "0007_history",
        """
        -- The stamps of late: a copy of one of these states lacks only what came since.
        CREATE TABLE history (generation INTEGER PRIMARY KEY, stamp TEXT NOT NULL);
        INSERT INTO history SELECT generation, stamp FROM state;
        """,
    ),
    Migration(
        "0008_reading",
        """
        -- The version of the readers that made a document: what an older one made is read again.
        ALTER TABLE documents ADD COLUMN reading INTEGER NOT NULL DEFAULT 0;
        """,
    ),
    Migration("0009_words", _NO_WORDS + _WORDS),  # emoji are words now, and names such as IT
)


class Schema(NamedTuple):
    """What a database of epicrag is: the number in its header, its steps, and its name for people."""

    application_id: int
    migrations: tuple[Migration, ...]
    kind: str


def catalog() -> Schema:
    return Schema(APPLICATION_ID, MIGRATIONS, "a catalog")


def words_again() -> Iterator[str]:
    """Yield the statements that make the words anew, however damaged those are that are there."""
    yield from _statements(_NO_WORDS + _WORDS)


def is_blank(connection: sqlite3.Connection) -> bool:
    """Return whether nothing was ever created in this database: new, or killed at birth."""
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def applied(connection: sqlite3.Connection, schema: Schema | None = None) -> list[str]:
    """Return the names of the steps this database has; DamagedError when it is of another kind."""
    schema = schema or catalog()
    if is_blank(connection):
        return []
    if connection.execute("PRAGMA application_id").fetchone()[0] != schema.application_id:
        raise DamagedError(f"this SQLite file is not {schema.kind} of epicrag")
    return [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY step")]


def is_current(connection: sqlite3.Connection, schema: Schema | None = None) -> bool:
    """Return whether no step is missing; MismatchError when there are steps we do not know."""
    schema = schema or catalog()
    have, known = applied(connection, schema), [step.name for step in schema.migrations]
    if have[: len(known)] != known[: len(have)] or len(have) > len(known):
        raise MismatchError(
            f"the index was written by another version of epicrag: its schema is {have[-1]},"
            f" this version knows {known[-1]}",
            "update epicrag, or ingest into a new index with --index",
        )
    return len(have) == len(known)


def migrate(connection: sqlite3.Connection, schema: Schema | None = None) -> None:
    """Apply the missing steps in one transaction: after a kill, all of them happened or none."""
    schema = schema or catalog()
    if is_current(connection, schema):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = len(
            applied(connection, schema)
        )  # again, under the lock: another process may have been first
        if not done:
            connection.execute(f"PRAGMA application_id = {schema.application_id}")
            connection.execute(
                "CREATE TABLE migrations (step INTEGER PRIMARY KEY, name TEXT NOT NULL)"
            )
        for step, migration in list(enumerate(schema.migrations, start=1))[done:]:
            for statement in _statements(migration.script):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?, ?)", (step, migration.name))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger holds semicolons of its own."""
    statement = ""
    for part in script.split(";")[:-1]:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
