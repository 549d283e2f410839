"""An index written to one archive: passages, vectors and, if asked for, KV. Another process may write meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from epicrag import __version__
from epicrag.archive import (
    BLOCK,
    CHUNKS,
    DOCUMENTS,
    MANIFEST,
    VECTORS,
    Entry,
    Manifest,
    chunk_line,
    document_line,
    dumps,
    kv_name,
)
from epicrag.errors import DeviceError, UsageError
from epicrag.ingest import Event, Progress, own_keys
from epicrag.rebuild import embedder_of
from epicrag.types import Document

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from epicrag.pipeline import Pipeline

MODEL_SETTINGS = ("name", "fingerprint", "tokenizer_fingerprint", "dtype", "compile_mode")
KEPT_SETTINGS = ("chunk_tokens", "last_ingest", "kv_own_keys", "kv_bytes_per_token")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an archive holds; `left_out` KV was noted and is not, or no longer whole, on disk."""

    path: Path
    bytes: int
    documents: int
    chunks: int
    vectors: int
    kv: int
    left_out: int
    ms: float


def export(
    pipeline: Pipeline,
    path: Path,
    *,
    kv: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the index to `path`: all of it as it was at one moment, under a temporary name until it is whole.

    UsageError: `path` exists and `force` is False. DeviceError: the disk is full.
    """
    began = time.perf_counter()
    pipeline.refuse_empty()
    if path.exists() and not force:
        raise UsageError(f"{path} exists", "choose another name, or overwrite it with --force")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with _alone(temporary) as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
                manifest, left_out = _write(
                    pipeline, _Writer(file), kv, progress or (lambda event: None)
                )
            stream.flush()
            os.replace(temporary, path)
    except OSError as error:
        raise DeviceError(
            f"{path} cannot be written: {error.strerror or error}",
            "free some space, or choose another place",
        ) from error
    return Exported(
        path=path,
        bytes=path.stat().st_size,
        documents=manifest.documents,
        chunks=manifest.chunks,
        vectors=manifest.vectors,
        kv=manifest.kv,
        left_out=left_out,
        ms=(time.perf_counter() - began) * 1000,
    )


@contextmanager
def _alone(temporary: Path) -> Iterator[IO[bytes]]:
    """Open the temporary file as the only one that writes to it; what a killed export left there is overwritten.

    UsageError: another export is at it. If the block fails the file is gone.
    """
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "r+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = os.path.samestat(os.fstat(descriptor), os.stat(temporary))
        except (
            BlockingIOError,
            FileNotFoundError,
        ):  # it is being written, or was finished just now
            is_mine = False
        if not is_mine:
            raise UsageError(
                f"another epicrag is writing {temporary.name.removeprefix('.').removesuffix('.tmp')}",
                "wait for it, or choose another name",
            )
        try:
            stream.truncate()
            yield stream
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class _Writer:
    """Puts files into a zip, and notes their sizes and checksums."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self.entries: dict[str, Entry] = {}

    def put(self, name: str, blocks: Iterator[bytes], *, packed: bool = True) -> None:
        """Write one file; numbers do not pack, and are stored as they are."""
        digest, n_bytes = hashlib.sha256(), 0
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        with self._file.open(info, "w", force_zip64=True) as stream:
            for block in blocks:
                digest.update(block)
                n_bytes += len(block)
                stream.write(block)
        self.entries[name] = Entry(n_bytes, digest.hexdigest())


def _write(
    pipeline: Pipeline, writer: _Writer, kv: bool, progress: Progress
) -> tuple[Manifest, int]:
    catalog = pipeline.catalog
    with catalog.snapshot():
        counts, settings, embedder = catalog.counts(), catalog.settings(), embedder_of(pipeline)
        windows, data = _vectors(pipeline)
        keys = {row: key for _, row, key in catalog.kv_rows()} if kv else {}
        own = own_keys(catalog) if kv else set()
        documents = _in_order(pipeline)
        writer.put(DOCUMENTS, (dumps(document_line(document)) for document in documents))
        writer.put(CHUNKS, _chunk_lines(pipeline, documents, windows, keys))
        writer.put(VECTORS, _npy(data), packed=False)
    wanted = sorted({*keys.values(), *own})
    written = sum(
        _put_kv(pipeline, writer, key, n, len(wanted), progress) for n, key in enumerate(wanted, 1)
    )
    manifest = Manifest(
        epicrag=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        embedder=embedder,
        model=_model(settings) if kv else {},
        settings={name: settings[name] for name in KEPT_SETTINGS if name in settings},
        documents=counts.documents,
        chunks=counts.chunks,
        vectors=counts.vectors,
        kv=written,
        files=writer.entries,
    )
    writer.put(MANIFEST, iter([manifest.dump()]))
    return manifest, len(wanted) - written


def _model(settings: dict[str, str]) -> dict[str, str]:
    named = {name: settings.get(f"model_{name}", "") for name in MODEL_SETTINGS}
    return {**named, "profile": settings.get("kv_profile", "")}


def _in_order(pipeline: Pipeline) -> list[Document]:
    """The documents in the order they came in: equal scores are then ranked as they were."""
    first: dict[str, int] = {}
    for row, _, path in pipeline.catalog.chunk_rows():
        first.setdefault(path, row)
    rows = sorted(pipeline.catalog.documents(), key=lambda row: first.get(row.path, 0))
    return [
        Document(
            path=row.path,
            text="",
            digest=row.digest,
            media=row.media,
            title=row.title,
            meta=row.meta,
            reading=row.reading,
        )
        for row in rows
    ]


def _vectors(pipeline: Pipeline) -> tuple[Counter[int], NDArray[np.float32]]:
    """Return how many windows each chunk row has, and all vectors by chunk row: as documents came in."""
    import numpy as np

    held = pipeline.catalog.vectors()
    order = np.argsort(held.chunk_rows, kind="stable")
    return Counter(held.chunk_rows.tolist()), np.ascontiguousarray(held.data[order])


def _chunk_lines(
    pipeline: Pipeline, documents: Sequence[Document], windows: Counter[int], keys: dict[int, str]
) -> Iterator[bytes]:
    for document in documents:
        for row, chunk in pipeline.catalog.chunks(document.path):
            yield dumps(chunk_line(chunk, windows[row], keys.get(row)))


def _npy(data: NDArray[np.float32]) -> Iterator[bytes]:
    import io

    import numpy as np

    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(data))
    yield head.getvalue()
    raw = data.reshape(-1).view(np.uint8)
    for at in range(0, len(raw), BLOCK):
        yield raw[at : at + BLOCK].tobytes()


def _put_kv(
    pipeline: Pipeline, writer: _Writer, key: str, n: int, total: int, progress: Progress
) -> bool:
    """Put one KV file in, if it is there and whole."""
    from epicrag.index.kvstore import Missing

    progress(Event("archive", n, total))
    if isinstance(pipeline.kv_store.look(key), Missing):
        return False
    try:
        raw = pipeline.kv_store.file(key).read_bytes()
    except OSError:  # evicted in this instant
        return False
    writer.put(kv_name(key), iter([raw]), packed=False)
    return True
