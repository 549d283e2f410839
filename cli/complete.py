"""What a shell may complete: the paths of the index's documents, read without anything heavy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

_MOST = 200


def documents(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the documents' paths that begin so, from the working folder on; nothing where something is wrong."""
    import sqlite3

    from epicrag.config import load_config

    with suppress(Exception):
        flags = {name: ctx.params.get(name) for name in ("index", "home", "config")}
        file = load_config(flags).index / "catalog.sqlite"
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)
        with suppress(sqlite3.Error):
            rows = connection.execute("SELECT path FROM documents ORDER BY path").fetchall()
            connection.close()
            paths = [row[0].decode("utf-8", "surrogateescape") for row in rows]
            return [name for name in map(_near, paths) if name.startswith(incomplete)][:_MOST]
    return []


def _near(path: str) -> str:
    here = Path.cwd()
    with suppress(ValueError):
        return Path(path).relative_to(here).as_posix()
    return path


Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Paths, folders, globs or ids; all without.",
        metavar="[NAME...]",
        autocompletion=documents,
    ),
]
"""Documents by the names people give them, for verbs that mean all of them where none is named."""
