"""Vectors of another embedder, collected beside those in use, and put in their place all at once.

Until then readers see the old ones. What is collected outlives a kill, and goes with its chunk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from epicrag.index.catalog import checked, step
from epicrag.index.retrieve import SETTING, facts_of

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder

_SETTING = "staging_embedder"


class Staging:
    """The staged vectors of one catalog. Every method is one transaction."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._database = catalog.database

    @property
    def embedder(self) -> dict[str, object] | None:
        """Name, fingerprint and dim of the embedder that vectors are collected of; None: of none."""
        stored = self._catalog.setting(_SETTING)
        return json.loads(stored) if stored else None

    @property
    def count(self) -> int:
        """Chunks that have staged vectors."""
        return int(self._database.rows("SELECT count(*) FROM staging")[0][0])

    @property
    def nbytes(self) -> int:
        return int(self._database.rows("SELECT coalesce(sum(length(data)), 0) FROM staging")[0][0])

    def begin(self, embedder: Embedder) -> None:
        """Collect for this embedder from now on; what was collected for another is dropped."""
        mine = facts_of(embedder)
        if self.embedder == mine:
            return
        with self._database.writing() as connection:
            connection.execute("DELETE FROM staging")
            _set(connection, _SETTING, mine)

    def missing(self, limit: int) -> list[int]:
        """Return the first rows of chunks that have no staged vectors."""
        rows = self._database.rows(
            "SELECT row FROM chunks WHERE NOT EXISTS"
            " (SELECT 1 FROM staging WHERE chunk_row = chunks.row) ORDER BY row LIMIT ?",
            (limit,),
        )
        return [row for (row,) in rows]

    def add(self, rows: Sequence[int], vectors: Sequence[NDArray[np.float32]]) -> None:
        """Stage the windows, (W, dim) unit rows, of each chunk. ValueError, and no change, if they are not."""
        windows = [checked(array) for array in vectors]
        with self._database.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO staging SELECT row, ?2, ?3 FROM chunks WHERE row = ?1",
                [(row, len(w), w.tobytes()) for row, w in zip(rows, windows, strict=True)],
            )

    def switch(self) -> None:
        """Put the staged vectors and their embedder in place of the old. RuntimeError: a chunk has none yet."""
        with self._database.writing() as connection:
            facts = connection.execute("SELECT value FROM settings WHERE name = ?", (_SETTING,))
            (embedder,) = facts.fetchone() or (None,)
            if embedder is None or _lacks(connection):
                raise RuntimeError("not every chunk has staged vectors")
            connection.execute("DELETE FROM vectors")
            for row, n, data in connection.execute("SELECT * FROM staging ORDER BY chunk_row"):
                size = len(data) // max(n, 1)
                connection.executemany(
                    'INSERT INTO vectors (chunk_row, "window", data) VALUES (?, ?, ?)',
                    [(row, i, data[i * size : (i + 1) * size]) for i in range(n)],
                )
            _set(connection, SETTING, json.loads(embedder))
            _clear(connection)
            step(connection)

    def drop(self) -> int:
        """Forget what was collected; return of how many chunks."""
        with self._database.writing() as connection:
            (count,) = connection.execute("SELECT count(*) FROM staging").fetchone()
            _clear(connection)
        return int(count)


def _lacks(connection: sqlite3.Connection) -> bool:
    found = connection.execute(
        "SELECT 1 FROM chunks WHERE NOT EXISTS"
        " (SELECT 1 FROM staging WHERE chunk_row = chunks.row) LIMIT 1"
    )
    return found.fetchone() is not None


def _clear(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM staging")
    connection.execute("DELETE FROM settings WHERE name = ?", (_SETTING,))


def _set(connection: sqlite3.Connection, name: str, facts: dict[str, object]) -> None:
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, json.dumps(facts)))
