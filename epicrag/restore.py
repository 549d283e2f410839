"""An archive put into an index: checked to the last byte first, and then in one transaction."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.archive import Archive, ChunkLine, damaged, kv_name
from epicrag.errors import DeviceError, MismatchError, UsageError
from epicrag.export import MODEL_SETTINGS
from epicrag.ingest import Event, Progress
from epicrag.rebuild import Rebuilt, embedder_of, reembed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from epicrag.pipeline import Pipeline
    from epicrag.types import Chunk, Document

_SPARE_BYTES = 16 << 20
_Item = tuple["Document", list["Chunk"], "list[NDArray[np.float32]]"]


@dataclass(frozen=True, slots=True)
class Restored:
    """What an import put in. `notes` say what was left out, and why."""

    documents: int
    chunks: int
    vectors: int
    kv: int
    replaced: int
    """Documents that the index had under the same path."""
    reembedded: Rebuilt | None = None
    notes: tuple[str, ...] = ()
    ms: float = 0.0


def restore(
    pipeline: Pipeline,
    path: Path,
    *,
    merge: bool = False,
    re_embed: bool = False,
    maps: Sequence[tuple[str, str]] = (),
    kv: bool = True,
    progress: Progress | None = None,
) -> Restored:
    """Put an archive into an empty index; with `merge` into one that holds documents, whose namesakes go.

    `maps` are (old, new) beginnings of paths, the first that fits. KV comes along where it is of the
    configured model. Nothing is written before all of it is proven; passages then come in one transaction.

    UsageError: the index holds documents. MismatchError: the embedder is another, unless `re_embed` (which
    puts the archive's vectors in, and embeds anew beside them). DamagedError: the archive is. LockedError.
    """
    from epicrag.index.lock import WriterLock

    began, say = time.perf_counter(), progress or (lambda event: None)
    notes: list[str] = []
    with Archive.open(path) as archive:
        if pipeline.exists:
            _check_place(pipeline, archive, merge)
        _check_embedder(pipeline, archive, re_embed)
        _check_room(pipeline, archive, kv)
        items = _checked(archive, maps, say)
        with WriterLock(pipeline.config.index):
            known = _check_place(pipeline, archive, merge)
            keys = _take_kv(pipeline, archive, notes, say) if kv else set()
            settings = _settings(pipeline, archive, maps, bool(known), bool(keys))
            wanted = {
                (line.chunk.document, line.chunk.ordinal): line.key
                for lines in items.chunks.values()
                for line in lines
                if line.key in keys and line.key is not None
            }
            say(Event("doing", message=f"putting in {archive.manifest.chunks:,} passages"))
            pipeline.catalog.load(items, wanted, settings)
            pipeline.vectors.refresh()
    again = reembed(pipeline, progress=progress) if re_embed else None
    return Restored(
        documents=archive.manifest.documents,
        chunks=archive.manifest.chunks,
        vectors=archive.manifest.vectors,
        kv=len(keys),
        replaced=len(known & items.documents.keys()),
        reembedded=again if again and again.new else None,
        notes=tuple(notes),
        ms=(time.perf_counter() - began) * 1000,
    )


# --- proving it whole ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Items:
    """All of an archive's passages, proven; iterated as the catalog loads them."""

    documents: dict[str, Document]
    chunks: dict[str, list[ChunkLine]]
    vectors: NDArray[np.float32]

    def __iter__(self) -> Iterator[_Item]:
        at = 0
        for path, document in self.documents.items():
            windows = []
            for line in self.chunks[path]:
                windows.append(self.vectors[at : at + line.windows])
                at += line.windows
            yield document, [line.chunk for line in self.chunks[path]], windows


def _checked(archive: Archive, maps: Sequence[tuple[str, str]], say: Progress) -> _Items:
    """Read everything once against its checksum, and see that the parts fit each other."""
    names = sorted(archive.manifest.files)
    for n, name in enumerate(names, 1):
        archive.verify(name)
        say(Event("archive", n, len(names)))
    relabel = _relabel(maps)
    documents: dict[str, Document] = {}
    chunks: dict[str, list[ChunkLine]] = {}
    for document in archive.documents():
        path = relabel(document.path)
        if path in documents:
            raise UsageError(f"two documents would be called {path}", "change --map")
        documents[path], chunks[path] = replace(document, path=path), []
    for line in archive.chunks():
        path = relabel(line.chunk.document)
        if path not in chunks or line.chunk.ordinal != len(chunks[path]):
            raise damaged(archive.path, f"a chunk of {line.chunk.document!r} is out of place")
        chunks[path].append(replace(line, chunk=replace(line.chunk, document=path)))
    items = _Items(documents, chunks, archive.vectors())
    _check_counts(archive, items)
    return items


def _check_counts(archive: Archive, items: _Items) -> None:
    lines = [line for of_one in items.chunks.values() for line in of_one]
    found = (len(items.documents), len(lines), sum(line.windows for line in lines))
    promised = archive.manifest
    if found != (promised.documents, promised.chunks, promised.vectors):
        raise damaged(archive.path, "it holds more or less than its manifest says")


def _relabel(maps: Sequence[tuple[str, str]]) -> Callable[[str], str]:
    def relabelled(path: str) -> str:
        for old, new in maps:
            root = old.rstrip("/")
            if path == root or path.startswith(root + "/"):
                return new.rstrip("/") + path[len(root) :]
        return path

    return relabelled


# --- whether it may come in ----------------------------------------------------------------------


def _check_embedder(pipeline: Pipeline, archive: Archive, re_embed: bool) -> None:
    from epicrag.index.retrieve import facts_of

    made, embedder = archive.manifest.embedder, pipeline.embedder
    if re_embed or not archive.manifest.vectors or made == facts_of(embedder):
        return
    raise MismatchError(
        f"the archive was made with the embedder {made['name']} ({made['dim']} numbers, fingerprint "
        f"{str(made['fingerprint'])[:8]}), not with {embedder.name} ({embedder.dim} numbers, "
        f"fingerprint {embedder.fingerprint[:8]})",
        f"embed it again while it comes in: --re-embed; or use the archive's: "
        f"--embed-model {shlex.quote(str(made['name']))}",
    )


def _check_place(pipeline: Pipeline, archive: Archive, merge: bool) -> set[str]:
    """Return the documents that the index holds; refuse those that the archive cannot join."""
    known = {row.path for row in pipeline.catalog.documents()}
    if not known:
        return known
    if not merge:
        raise UsageError(
            f"the index at {pipeline.config.index} holds documents already",
            "import into another with --index, or add to this one with --merge",
        )
    mine = embedder_of(pipeline)
    if mine.get("fingerprint") != archive.manifest.embedder.get("fingerprint"):
        raise MismatchError(
            f"the archive was made with the embedder {archive.manifest.embedder.get('name')}, and the "
            f"index with {mine.get('name')}: they cannot be merged",
            "import it into an index of its own with --index and --re-embed, export that, and merge it",
        )
    return known


def _check_room(pipeline: Pipeline, archive: Archive, kv: bool) -> None:
    files = archive.manifest.files
    needed = sum(e.bytes for name, e in files.items() if kv or not name.startswith("kv/"))
    folder = pipeline.config.index
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < 2 * needed + _SPARE_BYTES:
        raise DeviceError(
            f"the archive unpacks to {needed >> 20:,} MiB, and the disk at {folder} has "
            f"{free >> 20:,} MiB free",
            "free some space, or leave its KV out with --no-kv",
        )


# --- KV and settings -----------------------------------------------------------------------------


def _take_kv(pipeline: Pipeline, archive: Archive, notes: list[str], say: Progress) -> set[str]:
    """Put the archive's KV beside what is there; return the keys that are. Nothing refers to it yet."""
    if not archive.keys:
        return set()
    if why := _foreign(pipeline, archive):
        notes.append(f"the archive's KV was left out: {why}; compute it with: epicrag warm")
        return set()
    taken: set[str] = set()
    budget = pipeline.config.kv_disk
    held, over = pipeline.kv_store.nbytes(), 0
    for n, key in enumerate(sorted(archive.keys), 1):
        size = archive.manifest.files[kv_name(key)].bytes
        if budget is not None and held + size > budget:
            over += 1
            continue
        if _put_kv(pipeline, archive, key):
            taken.add(key)
            held += size
        say(Event("archive", n, len(archive.keys)))
    if over:
        notes.append(f"{over:,} KV files were left out: the budget kv_disk is full")
    if bad := len(archive.keys) - over - len(taken):
        notes.append(f"{bad:,} KV files were left out: they are not whole, or of another format")
    return taken


def _foreign(pipeline: Pipeline, archive: Archive) -> str | None:
    """Why the KV would be of no use here; None if it is of the configured model."""
    theirs = archive.manifest.model
    mine = pipeline.model_fingerprint()
    if mine is None:
        return f"the configured model {pipeline.config.model} is not on this machine"
    if mine != theirs.get("fingerprint"):
        return (
            f"it is of the model {theirs.get('name')} (fingerprint {theirs.get('fingerprint', '')[:8]}),"
            f" and {pipeline.config.model} (fingerprint {mine[:8]}) is configured"
        )
    profile = pipeline.catalog.setting("kv_profile")
    if profile and profile != theirs.get("profile") and pipeline.catalog.kv_keys():
        return "the index holds KV of another model, mode or type of numbers"
    return None


def _put_kv(pipeline: Pipeline, archive: Archive, key: str) -> bool:
    from epicrag.index.kvstore import Missing

    store = pipeline.kv_store
    if not isinstance(store.look(key), Missing):
        return True
    file = store.file(key)
    temporary = file.with_name(f"{key}.{secrets.token_hex(8)}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            for block in archive.blocks(kv_name(key)):
                stream.write(block)
        os.replace(temporary, file)
    except OSError as error:
        raise DeviceError(
            f"KV cannot be written to {file.parent}: {error.strerror or error}",
            "free some space, or leave it out with --no-kv",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    if isinstance(store.look(key), Missing):
        store.delete(key)
        return False
    return True


def _settings(
    pipeline: Pipeline,
    archive: Archive,
    maps: Sequence[tuple[str, str]],
    is_full: bool,
    has_kv: bool,
) -> dict[str, str]:
    """The settings that come in with the passages. What names files of this machine is left to be found out."""
    from epicrag.index.retrieve import SETTING

    given, relabel = archive.manifest.settings, _relabel(maps)
    mine = pipeline.catalog.settings()
    sizes = {relabel(path): size for path, size in _sizes(given).items()}
    settings = {"chunk_tokens": json.dumps({**_sizes(mine), **sizes})}
    if not is_full:
        settings[SETTING] = json.dumps(dict(archive.manifest.embedder))
        settings["embedder_identity"] = ""
        if "last_ingest" in given:
            settings["last_ingest"] = given["last_ingest"]
    if has_kv and not (mine.get("kv_profile") and pipeline.catalog.kv_keys()):
        model = archive.manifest.model
        settings["kv_identity"] = ""  # the next run that computes KV loads the model, and looks
        settings.update({f"model_{name}": model[name] for name in MODEL_SETTINGS if name in model})
        settings["kv_profile"] = model.get("profile", "")
        for name in ("kv_own_keys", "kv_bytes_per_token"):
            if name in given:
                settings[name] = given[name]
    return settings


def _sizes(settings: Mapping[str, str]) -> dict[str, int]:
    """The chunk sizes by root; {} where they are not readable."""
    try:
        sizes = json.loads(settings.get("chunk_tokens") or "{}")
        return {str(path): int(size) for path, size in sizes.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
