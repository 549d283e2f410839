"""The documents of an index, by the names a person gives them: listed, and taken out."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.errors import UsageError
from epicrag.ingest import own_keys

if TYPE_CHECKING:
    from epicrag.index.catalog import DocumentRow
    from epicrag.pipeline import Pipeline
    from epicrag.types import MetaValue

_ID_LENGTH = 12
_LEAST_PREFIX = 4


@dataclass(frozen=True, slots=True)
class Listed:
    """A document, and what is there of it."""

    id: str
    path: str
    title: str | None
    media: str
    chunks: int
    tokens: int
    chunks_with_kv: int
    kv_bytes: int
    """On disk. What two documents share is counted with each."""
    meta: dict[str, MetaValue]


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a `delete` took out, or would take out."""

    paths: tuple[str, ...]
    chunks: int
    kv_files: int = 0
    kv_bytes: int = 0
    left: tuple[str, ...] = ()
    """Those of `paths` whose files are still there: the next ingest brings them back."""


class UnconfirmedError(UsageError):
    """More would be deleted than was named one by one, and nobody has said yes."""

    code = "unconfirmed"


def document_id(path: str) -> str:
    """A short name of a document that any shell takes: it stays as long as the path does."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:_ID_LENGTH]


def listing(pipeline: Pipeline, names: Sequence[str] = ()) -> list[Listed]:
    """Return the documents that the names mean, all without any, by path. Loads no model."""
    documents = pipeline.catalog.documents()
    if names:
        documents = named(documents, names)
    sizes = pipeline.kv_store.sizes()
    keys = defaultdict(list)
    for path, _, key in pipeline.catalog.kv_rows():
        if key in sizes:
            keys[path].append(key)
    return [
        Listed(
            id=document_id(row.path),
            path=row.path,
            title=row.title,
            media=row.media,
            chunks=row.chunks,
            tokens=row.tokens,
            chunks_with_kv=len(keys[row.path]),
            kv_bytes=sum(sizes[key] for key in set(keys[row.path])),
            meta=row.meta,
        )
        for row in documents
    ]


def delete(
    pipeline: Pipeline, names: Sequence[str], *, yes: bool = False, dry_run: bool = False
) -> Deleted:
    """Take documents out of the index: passages, vectors, words and KV, in one transaction and then the files.

    UnconfirmedError, without `yes`: a glob or folder means several of them, or it is more than half of
    the index, or its only document. The files themselves are never touched.
    """
    from contextlib import nullcontext

    from epicrag.index.lock import WriterLock

    with nullcontext() if dry_run else WriterLock(pipeline.config.index):
        catalog = pipeline.catalog
        known = catalog.documents()
        doomed = named(known, names)
        if not (yes or dry_run):
            _guard(doomed, known, names)
        paths = tuple(row.path for row in doomed)
        gone = Deleted(
            paths, sum(row.chunks for row in doomed), left=tuple(filter(is_there, paths))
        )
        if dry_run:
            return gone
        catalog.delete_documents(paths)
        pipeline.vectors.refresh()
        # As at the end of an ingest: KV of other modes may hold the same texts.
        files, n_bytes = pipeline.kv_store.gc(catalog.kv_keys() | own_keys(catalog))
    return Deleted(gone.paths, gone.chunks, files, n_bytes, gone.left)


def _guard(
    doomed: Sequence[DocumentRow], known: Sequence[DocumentRow], names: Sequence[str]
) -> None:
    is_each_named = len(doomed) <= len(set(names)) and not any(
        set(name) & set("*?[") for name in names
    )
    is_small = len(doomed) <= 1 or (is_each_named and 2 * len(doomed) <= len(known))
    if not doomed or (is_small and len(doomed) < len(known)):
        return
    raise UnconfirmedError(
        f"this would delete {len(doomed)} of the {len(known)} documents in the index",
        "see which with --dry-run; if you mean it, add --yes",
    )


def is_there(path: str) -> bool:
    """Whether the source of a document is a file that exists, or stands in one: `a.zip!/inner/x.md`."""
    return os.path.lexists(path) or os.path.lexists(path.partition("!/")[0])


# --- what a name means ---------------------------------------------------------------------------


def named(documents: Sequence[DocumentRow], names: Sequence[str]) -> list[DocumentRow]:
    """Return the documents that the names mean, each once, by path. UsageError: one means none.

    A name is a path, a folder, a glob, the end of a path, or the beginning of an id.
    """
    found: dict[str, DocumentRow] = {}
    for name in names:
        meant = meaning(documents, name)
        if not meant:
            raise unknown(documents, name)
        found.update({row.path: row for row in meant})
    return [found[path] for path in sorted(found)]


def meaning(documents: Sequence[DocumentRow], name: str) -> list[DocumentRow]:
    """Return what one name means: the first reading of it that fits anything; [] when none does."""
    if not name.strip():
        return []
    whole = {name, *_absolute(name)}
    readings = (
        lambda path: path in whole,
        lambda path: any(path.startswith(root.rstrip("/") + "/") for root in whole),
        lambda path: _is_glob(name) and _fits(path, name),
        lambda path: path.endswith("/" + name.removeprefix("./")),
        lambda path: _is_prefix(name) and document_id(path).startswith(name.lower()),
    )
    for fits in readings:
        if found := [row for row in documents if fits(row.path)]:
            return found
    return []


def unknown(documents: Sequence[DocumentRow], name: str) -> UsageError:
    """The error for a name that means nothing, with names that are near."""
    ends = {Path(row.path).name: row.path for row in documents}
    near = get_close_matches(Path(name).name, ends, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(
        f"no document in the index is called {name!r}", f"{hint}see them with: epicrag list"
    )


def _absolute(name: str) -> set[str]:
    """The paths that a name may stand for: as ingest writes them, links resolved, and as they were typed."""
    path = os.path.expanduser(name)
    try:
        return {Path(os.path.abspath(path)).as_posix(), Path(os.path.realpath(path)).as_posix()}
    except (OSError, ValueError):
        return set()


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _fits(path: str, pattern: str) -> bool:
    """Whether a glob means a path: from the working folder on, or the end of it."""
    patterns = {
        pattern,
        "*/" + pattern.removeprefix("./"),
        Path(os.path.abspath(pattern)).as_posix(),
    }
    return any(fnmatchcase(path, one) for one in patterns)


def _is_prefix(name: str) -> bool:
    return len(name) >= _LEAST_PREFIX and all(sign in "0123456789abcdef" for sign in name.lower())
