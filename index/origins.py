"""Where documents from the web were found, and what their servers said of them: spares fetching them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from epicrag.types import Origin

if TYPE_CHECKING:
    from epicrag.index.database import Database


class Origins:
    """The table of origins. A row whose document is not in the catalog counts for nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, roots: Sequence[str]) -> list[Origin]:
        """Return the origins of all documents that these roots led to, also those of other roots."""
        rows = self._database.rows(
            "SELECT path, root, asked, origins.digest, etag, modified, documents.digest"
            " FROM origins JOIN documents USING (path)"
        )
        origins = [_origin(*row) for row in rows]
        wanted = set(roots)
        paths = {origin.path for origin in origins if origin.root in wanted}
        return [origin for origin in origins if origin.path in paths]

    def note(self, origins: Iterable[Origin]) -> None:
        """Store origins (the fields of `Origin`), in place of what was known of the same path and root."""
        with self._database.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO origins (path, root, asked, digest, etag, modified)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(_encode(path), *rest) for path, *rest in origins],
            )

    def prune(
        self, roots: Sequence[str], origins: Iterable[Origin], spare: AbstractSet[str]
    ) -> None:
        """Forget what these roots no longer lead to, but for what could not be looked at."""
        kept = {(_encode(path), root) for path, root, *_ in origins}
        spared = {_encode(path) for path in spare}
        with self._database.writing() as connection:
            marks = ", ".join("?" * len(roots))
            known = connection.execute(
                f"SELECT path, root FROM origins WHERE root IN ({marks})", list(roots)
            ).fetchall()
            gone = [pair for pair in known if pair not in kept and pair[0] not in spared]
            connection.executemany("DELETE FROM origins WHERE path = ? AND root = ?", gone)


def _origin(
    path: bytes, root: str, asked: str, digest: str, etag: str, modified: str, held: str
) -> Origin:
    """What the server said of another version than the catalog holds is not to be used."""
    if digest != held:
        etag = modified = ""
    return Origin(path.decode("utf-8", "surrogateescape"), root, asked, digest, etag, modified)


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
