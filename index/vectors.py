"""The fast copy of the vectors: a FAISS index that is checked on open and rebuilt from the catalog."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import MismatchError

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog

FILE_NAME = "vectors.faiss"
_MAGIC = b"epicrag vectors\n"
_WINDOWS_PER_CHUNK = 4  # asked of FAISS for each chunk wanted; more when windows crowd
_log = logging.getLogger("epicrag")


class VectorIndex:
    """Nearest chunks by cosine. The catalog is the truth: losing the file costs a rebuild, no more.

    `rebuilt` says why the copy on disk was not used, None when it was.
    """

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self._catalog = catalog
        self._file = folder / FILE_NAME
        self._mutex = threading.RLock()
        self._stamp: str | None = None
        self._index: Any = None  # None while there are no vectors
        self._rows: dict[int, int] = {}  # vector id: chunk row
        self.rebuilt: str | None = None

    @classmethod
    def open(cls, catalog: Catalog, folder: Path) -> VectorIndex:
        """Use the copy in `folder` if it is whole and of the catalog's present state, else rebuild it."""
        index = cls(catalog, folder)
        with catalog.snapshot():
            index.rebuilt = index._load()
            if index.rebuilt is not None:
                index._build()
                index._save()
        return index

    @classmethod
    def renew(cls, catalog: Catalog, folder: Path) -> VectorIndex:
        """Write the copy again from the catalog, whatever state it is in."""
        index = cls(catalog, folder)
        with catalog.snapshot():
            index.rebuilt = "asked for"
            index._build()
            index._save()
        return index

    @classmethod
    def fault(cls, catalog: Catalog, folder: Path) -> str | None:
        """Return why the copy cannot be used: "missing", "old" or "damaged…"; None: it can. Writes nothing."""
        index = cls(catalog, folder)
        with catalog.snapshot():
            return index._load()

    @property
    def count(self) -> int:
        """Vectors held; equal to the catalog's count."""
        return int(self._index.ntotal) if self._index is not None else 0

    def search(self, query: NDArray[np.float32], k: int) -> list[tuple[int, float]]:
        """Return the k best (chunk row, cosine): its best window speaks for a chunk; ties by row.

        `query` is (dim,); MismatchError when the index holds vectors of another dimension.
        """
        with self._mutex:
            if self._index is None or k < 1:
                return []
            best: dict[int, float] = {}
            wanted = 0
            while len(best) < k and wanted < self.count:
                wanted = min(max(_WINDOWS_PER_CHUNK * k, 2 * wanted), self.count)
                best = self._nearest(self._unit(query), wanted)
        return sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def refresh(self, *, save: bool = True) -> None:
        """Take over what changed in the catalog since, and `save` the copy."""
        with self._mutex, self._catalog.snapshot():
            if self._catalog.stamp == self._stamp:
                return
            self._update()
            if save:
                self._save()

    def _unit(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the query as a (1, dim) unit row."""
        row = np.asarray(query, np.float32).reshape(1, -1)
        if row.shape[1] != self._index.d:
            raise MismatchError(
                f"the index holds vectors of {self._index.d} numbers, the embedder makes {row.shape[1]}",
                "use the embedder the index was made with (--embed-model), or a new index (--index)",
            )
        length = float(np.linalg.norm(row))
        return row / length if length > 0 else row

    def _nearest(self, row: NDArray[np.float32], n: int) -> dict[int, float]:
        """Return the best score of each chunk among the n nearest windows."""
        scores, ids = self._index.search(row, n)
        best: dict[int, float] = {}
        for vector_id, score in zip(ids[0].tolist(), scores[0].tolist(), strict=True):
            if vector_id >= 0:  # FAISS fills up with -1 where nothing compares
                best.setdefault(self._rows[vector_id], min(max(score, -1.0), 1.0))
        return best

    def _build(self) -> None:
        """Build from the catalog alone."""
        self._index, self._rows = None, {}
        self._update()

    def _update(self) -> None:
        """Remove and add what differs from the catalog: ids are never reused, vectors never change."""
        ids, rows = self._catalog.vector_rows()
        live = dict(zip(ids.tolist(), rows.tolist(), strict=True))
        gone = [vector_id for vector_id in self._rows if vector_id not in live]
        fresh = self._catalog.vectors(after=max(self._rows, default=0))
        if len(gone) == self.count:
            self._index = None  # a first vector may be of another dimension
        elif gone:
            self._index.remove_ids(np.array(gone, np.int64))
        if len(fresh.ids):
            self._index = self._index or _flat(fresh.data.shape[1])
            self._index.add_with_ids(fresh.data, fresh.ids)
        self._rows, self._stamp = live, self._catalog.stamp
        assert self.count == len(live)

    def _save(self) -> None:
        """Write the copy under a temporary name and rename it; a failure costs the next open a rebuild."""
        temporary = self._file.with_name(f"{FILE_NAME}.{secrets.token_hex(8)}.tmp")
        try:
            _write(temporary, self._index, str(self._stamp))
            os.replace(temporary, self._file)
        except OSError as error:
            _log.warning("the vector index is not saved: %s: %s", self._file, error.strerror)
            _unlink(temporary)

    def _load(self) -> str | None:
        """Load the copy; return why it cannot be used."""
        try:
            raw = self._file.read_bytes()
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"damaged: {error.strerror}"
        facts, body = _unpack(raw)
        if facts is None:
            return "damaged"
        if facts.get("stamp") != self._catalog.stamp:
            return "old"
        ids, rows = self._catalog.vector_rows()
        index = _parse(body)
        held = _ids(index)
        if not np.array_equal(held, ids):
            return f"damaged: {len(held)} vectors for the catalog's {len(ids)}"
        self._index, self._stamp = index, self._catalog.stamp
        self._rows = dict(zip(ids.tolist(), rows.tolist(), strict=True))
        return None


def _flat(dim: int) -> Any:
    import faiss

    return faiss.IndexIDMap2(faiss.IndexFlatIP(dim))


def _ids(index: Any) -> NDArray[np.int64]:
    """Return the ids an index holds, ascending."""
    import faiss

    if index is None:
        return np.zeros(0, np.int64)
    ids: NDArray[np.int64] = np.sort(faiss.vector_to_array(index.id_map))
    return ids


def _write(path: Path, index: Any, stamp: str) -> None:
    """Write the file: magic, one line of JSON, and FAISS's own bytes, covered by a checksum."""
    import faiss

    body = faiss.serialize_index(index).data if index is not None else b""
    facts = {"stamp": stamp, "xxh3": _digest(stamp, body)}
    with open(path, "wb") as file:
        file.write(_MAGIC + json.dumps(facts).encode() + b"\n")
        file.write(body)


def _unpack(raw: bytes) -> tuple[dict[str, Any] | None, memoryview]:
    """Return the facts and FAISS's bytes of a file; None for the facts when it is not whole."""
    end = raw.find(b"\n", len(_MAGIC), len(_MAGIC) + 4096)
    body = memoryview(raw)[end + 1 :]
    try:
        facts = json.loads(raw[len(_MAGIC) : end])
        whole = raw.startswith(_MAGIC) and facts["xxh3"] == _digest(facts["stamp"], body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, body
    return (facts if whole else None), body


def _parse(body: memoryview) -> Any:
    import faiss

    return faiss.deserialize_index(np.frombuffer(body, np.uint8)) if len(body) else None


def _digest(stamp: str, body: bytes | memoryview) -> str:
    import xxhash

    digest = xxhash.xxh3_128(stamp.encode())
    digest.update(body)
    return digest.hexdigest()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
