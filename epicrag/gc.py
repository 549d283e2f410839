"""What an index keeps for nobody, and its end: KV without a passage, leftovers of killed runs, empty pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.ingest import own_keys
from epicrag.keys import unnoted

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline

LEFTOVER_SECONDS = 600.0
"""A writer renames what it wrote within seconds: an older temporary file was left behind by a kill."""
_WORTH_COMPACTING = 0.1


@dataclass(frozen=True, slots=True)
class Freed:
    """One kind of what was freed, or would be."""

    what: str
    files: int
    bytes: int


def collect(pipeline: Pipeline, *, dry_run: bool = False) -> list[Freed]:
    """Free what nothing refers to, and say what: only kinds of which there was some. Loads no model.

    What an `ask` in another mode has left is among it. LockedError: somebody is writing.
    """
    from epicrag.index.lock import WriterLock

    with nullcontext() if dry_run else WriterLock(pipeline.config.index):
        if not dry_run and (mine := unnoted(pipeline, _nobodys(pipeline).keys())):
            pipeline.catalog.set_kv(list(mine.items()))
        found = [
            orphaned := _kv(pipeline, dry_run),
            _beyond_budget(pipeline, orphaned.bytes, dry_run),
            _leftovers(pipeline.config.index, dry_run),
            _staged(pipeline, dry_run),
            _vectors(pipeline, dry_run),
            _pages(pipeline, dry_run),
        ]
    return [freed for freed in found if freed.files or freed.bytes]


def orphans(pipeline: Pipeline) -> dict[str, int]:
    """Return the bytes of KV that belongs to no passage as it is now, by key.

    Where the catalog has lost a note, the keys that its passages have are derived anew.
    """
    doomed = _nobodys(pipeline)
    for key in unnoted(pipeline, doomed.keys()).values():
        doomed.pop(key, None)
    return doomed


def _nobodys(pipeline: Pipeline) -> dict[str, int]:
    """As far as the catalog's notes tell."""
    sizes = pipeline.kv_store.sizes()
    keep = pipeline.catalog.kv_keys() | own_keys(pipeline.catalog)
    return {key: size for key, size in sizes.items() if key not in keep}


def _kv(pipeline: Pipeline, dry_run: bool) -> Freed:
    doomed = orphans(pipeline)
    if not dry_run:
        for key in doomed:
            pipeline.kv_store.delete(key)
    return Freed("KV of no passage", len(doomed), sum(doomed.values()))


def _beyond_budget(pipeline: Pipeline, orphaned: int, dry_run: bool) -> Freed:
    """What `kv_disk` has no room for any more: the least retrieved goes. `orphaned` bytes go before."""
    store, files, n_bytes = pipeline.kv_store, 0, 0
    if not dry_run:
        files, n_bytes = store.shrink()
    elif store.budget_bytes is not None:
        n_bytes = max(store.nbytes() - orphaned - store.budget_bytes, 0)
    return Freed("KV beyond the budget kv_disk", files, n_bytes)


def leftovers(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the temporary files below an index folder that no living writer can still be writing."""
    oldest = time.time() - LEFTOVER_SECONDS
    for path in folder.rglob("*.tmp"):
        with suppress(OSError):  # another process was faster
            stat = path.stat()
            if path.is_file() and stat.st_mtime < oldest:
                yield path, stat.st_size


def _leftovers(folder: Path, dry_run: bool) -> Freed:
    files = n_bytes = 0
    for path, size in leftovers(folder):
        with suppress(OSError):
            if not dry_run:
                path.unlink()
            files, n_bytes = files + 1, n_bytes + size
    return Freed("temporary files of killed runs", files, n_bytes)


def _staged(pipeline: Pipeline, dry_run: bool) -> Freed:
    """An embedding that was begun and never switched to; `rebuild --embed-only` begins it anew."""
    from epicrag.index.staging import Staging

    staging = Staging(pipeline.catalog)
    n_bytes, count = staging.nbytes, staging.count
    if not dry_run and staging.embedder is not None:
        staging.drop()
    return Freed("vectors of a rebuild that was not finished", count, n_bytes)


def _vectors(pipeline: Pipeline, dry_run: bool) -> Freed:
    """Merge the files of the fast copy, so that none holds vectors of passages that are gone."""
    from epicrag.index.vectors import FOLDER_NAME

    folder = pipeline.config.index / FOLDER_NAME
    before = _folder_bytes(folder)
    if not dry_run:
        pipeline.vectors.refresh()
    freed = 0 if dry_run else max(before - _folder_bytes(folder), 0)
    return Freed("vectors of passages that are gone", 0, freed)


def _folder_bytes(folder: Path) -> int:
    with suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0


def _pages(pipeline: Pipeline, dry_run: bool) -> Freed:
    """Give back the pages of the catalog that hold nothing, where they are worth the copy it takes."""
    database = pipeline.catalog.database
    size, free = database.file.stat().st_size, database.free_bytes()
    if free < _WORTH_COMPACTING * size:
        return Freed("empty pages of the catalog", 0, 0)
    if not dry_run:
        database.compact()
    return Freed("empty pages of the catalog", 0, free)
