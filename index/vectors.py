"""The fast copy of the vectors: files that are checked on opening, and rebuilt from the catalog at need."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import MismatchError
from epicrag.index import manifest as manifests
from epicrag.index import segments as files
from epicrag.index.clusters import lists_for
from epicrag.index.manifest import DamagedManifest, Manifest
from epicrag.index.segments import DamagedSegment, Segment

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog

FOLDER_NAME = "vectors"
_OLD_FILE_NAME = "vectors.faiss"
_ATTEMPTS = 5  # to open files that a writer merges and removes meanwhile
_WORTH_SAVING = 4096  # vectors read from the catalog at an opening: the next one need not
_TAIL_SHARE = 2  # a file is merged with what came after it when that is more than one in so many
_TAIL_SHARE_OF_LISTS = 4  # the same for a file in lists: what came after it is searched one and all
_DEAD_SHARE = 4  # a file of which more than one in so many is dead is written anew
_FEW_SHARE = 8  # rows are looked at one by one when fewer than one in so many are allowed
_MEMORY_SEGMENTS = 8
_log = logging.getLogger("epicrag")
_Scores = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Chunk rows, each once, and the best cosine of each."""


class _Unusable(Exception):
    """Why the copy on disk cannot be used."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """What is searched: segments by id, and which state of the catalog they are."""

    segments: tuple[Segment, ...] = ()
    generation: int = -1
    stamp: str = ""
    last_id: int = 0

    @property
    def count(self) -> int:
        return sum(segment.count for segment in self.segments)

    @property
    def unsaved(self) -> int:
        return sum(segment.count for segment in self.segments if not segment.facts)


class VectorIndex:
    """Nearest chunks by cosine. The catalog is the truth: losing the copy costs a rebuild, no more.

    The copy is a folder of immutable files and a manifest; a save writes what is new, and merges small
    files now and then. Ids are the catalog's own and are never used twice, so a copy of an earlier state
    of the same catalog needs only what came since. `rebuilt` says why the copy was not used, None when
    it was. Searches may run in any number of threads.
    """

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self._catalog = catalog
        self._folder = folder / FOLDER_NAME
        self._old_file = folder / _OLD_FILE_NAME
        self._mutex = threading.RLock()
        self._state = _State()
        self._version = ""  # of the manifest that was read or written last
        self._is_tidy = False  # nothing is left to be written or merged in this state
        self.rebuilt: str | None = None

    @classmethod
    def open(cls, catalog: Catalog, folder: Path) -> VectorIndex:
        """Use the copy in `folder` and what came since, or rebuild it when it is missing, old or damaged."""
        index = cls(catalog, folder)
        index.rebuilt = index._load()
        if index.rebuilt is not None or index._state.unsaved >= _WORTH_SAVING:
            index._save(tidy=False)
        return index

    @classmethod
    def renew(cls, catalog: Catalog, folder: Path) -> VectorIndex:
        """Write the copy again from the catalog, whatever state it is in."""
        index = cls(catalog, folder)
        index.rebuilt = "asked for"
        manifests.forget(index._folder)
        index._save(tidy=True)
        return index

    @classmethod
    def fault(cls, catalog: Catalog, folder: Path) -> str | None:
        """Return why the copy cannot be used: "missing", "old" or "damaged…"; None: it can. Writes nothing."""
        return cls(catalog, folder)._load()

    @property
    def count(self) -> int:
        """Vectors held; equal to the catalog's count."""
        return self._state.count

    def search(
        self,
        query: NDArray[np.float32],
        k: int,
        allowed: Collection[int] | NDArray[np.int64] | None = None,
    ) -> list[tuple[int, float]]:
        """Return the k best (chunk row, cosine): its best window speaks for a chunk; ties by row.

        `query` is (dim,). With `allowed`, chunk rows in any order, only these are found: k of them when
        there are as many. MismatchError when the index holds vectors of another dimension.
        """
        segments = self._state.segments
        if not segments or k < 1:
            return []
        row = _unit(query, segments[0].dim)
        if not np.isfinite(row).all():
            return []
        wanted = None if allowed is None else _ascending(allowed)
        found = [_nearest(segment, row, k, wanted) for segment in segments]
        rows, scores = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        rows, scores = _top(*_once(rows, scores), k)
        return list(zip(rows.tolist(), np.clip(scores, -1, 1).tolist(), strict=True))

    def score_of(
        self, query: NDArray[np.float32], chunk_rows: Sequence[int]
    ) -> NDArray[np.float32]:
        """Return the cosine of each chunk's best window, (N,); 0 for a chunk that has no vector.

        MismatchError as in `search`.
        """
        wanted = np.asarray(chunk_rows, np.int64).reshape(-1)
        best = np.full(len(wanted), -np.inf, np.float32)
        segments = self._state.segments
        if segments and len(wanted):
            row = _unit(query, segments[0].dim)
            known = np.unique(wanted)
            for segment in segments:
                rows, scores = _exact(segment, row, _places_of(segment, known))
                places = np.searchsorted(known, rows)
                table = np.full(len(known), -np.inf, np.float32)
                table[places] = scores
                best = np.maximum(best, table[np.searchsorted(known, wanted)])
        return np.where(np.isfinite(best), np.clip(best, -1, 1), 0).astype(np.float32)

    def refresh(self, *, save: bool = True) -> None:
        """Take over what changed in the catalog since, and `save` the copy: for the writer of the index."""
        with self._mutex:
            is_current = self._catalog.stamp == self._state.stamp
            if save and not (is_current and self._is_tidy):
                self._save(tidy=True)
            elif not is_current:
                self._take_over()

    # --- from the copy ---

    def _load(self) -> str | None:
        """Make the state from the copy and what came since; return why the copy cannot be used."""
        reasons: dict[str, str] = {}  # by version: another one is a writer at work, so look again
        while len(reasons) < _ATTEMPTS:
            version = ""
            try:
                manifest, version = self._read_manifest()
                with self._catalog.snapshot():
                    self._state = self._caught_up(self._opened(manifest), None)
                self._version = version
                return None
            except _Unusable as error:
                if version in reasons:
                    return str(error)
                reasons[version] = str(error)
        return reasons.popitem()[1]

    def _read_manifest(self) -> tuple[Manifest, str]:
        try:
            manifest, version = manifests.read(self._folder)
        except DamagedManifest as error:
            raise _Unusable(f"damaged: {error}") from error
        except OSError as error:
            raise _Unusable(f"damaged: {error.strerror}") from error
        if manifest is None:
            raise _Unusable("missing")
        return manifest, version

    def _opened(self, manifest: Manifest) -> _State:
        """Return what a manifest names, if that is of a state that the catalog has been in."""
        if not self._catalog.has_been(manifest.generation, manifest.stamp):
            raise _Unusable("old")
        held = {segment.facts: segment for segment in self._state.segments}
        opened = []
        for facts in manifest.segments:
            try:
                segment = held.get(facts) or files.read_segment(self._folder, facts)
            except DamagedSegment as error:
                raise _Unusable(f"damaged: {facts.file}: {error}") from error
            except OSError as error:
                raise _Unusable(f"damaged: {facts.file}: {error.strerror}") from error
            opened.append(segment.without(manifest.dead))
        return _State(tuple(opened), manifest.generation, manifest.stamp, manifest.last_id)

    def _newest(self) -> _State:
        """Return the state of the copy on disk where another process has brought it further than ours."""
        try:
            manifest, version = self._read_manifest()
            if version == self._version or manifest.generation < self._state.generation:
                return self._state
            state = self._opened(manifest)
        except _Unusable:
            return self._state
        self._version = version
        return state

    # --- from the catalog ---

    def _take_over(self) -> None:
        """Make the state that of the catalog, in memory."""
        with self._catalog.snapshot():
            state = self._current(self._newest(), None)
        self._state, self._is_tidy = _compact(state), False

    def _current(self, state: _State, folder: Path | None) -> _State:
        try:
            return self._caught_up(state, folder)
        except _Unusable as error:
            _log.warning("the vector index is rebuilt: %s", error)
            return self._caught_up(_State(), folder)

    def _caught_up(self, state: _State, folder: Path | None) -> _State:
        """Return a state with what the catalog has gained and lost since; what is new is written to `folder`."""
        catalog = self._catalog
        segments, last_id = list(state.segments), state.last_id
        if catalog.stamp == state.stamp:
            new: Segment | None = None
        else:
            blocks = catalog.vector_batches(after=last_id)
            new = files.written(folder, blocks) if folder else files.in_memory(blocks)
        if new:
            segments.append(new)
            last_id = int(new.ids[-1])
        n = catalog.vector_count()
        if sum(segment.count for segment in segments) != n:
            live, _ = catalog.vector_rows()
            segments = [segment.keeping(live) for segment in segments]
        segments = [segment for segment in segments if segment.count]
        caught = _State(tuple(segments), catalog.generation, catalog.stamp, last_id)
        if caught.count != n:
            raise _Unusable(f"damaged: {caught.count} vectors for the catalog's {n}")
        return caught

    # --- to disk ---

    def _save(self, *, tidy: bool) -> None:
        """Save the copy; a failure costs the next opening what it now takes from the catalog.

        `tidy` is for the writer: it waits for its turn, and merges files.
        """
        try:
            with manifests.locked(self._folder, wait=tidy):
                if not tidy and self._load() is None and self._state.unsaved < _WORTH_SAVING:
                    return  # another process has just saved it
                self._save_locked(tidy)
                return
        except BlockingIOError:  # another process is at it
            pass
        except OSError as error:
            reason = error.strerror or error
            _log.warning("the vector index is not saved: %s: %s", self._folder, reason)
        self._take_over()

    def _save_locked(self, tidy: bool) -> None:
        try:
            with self._catalog.snapshot():
                state = self._current(self._newest(), self._folder)
            groups = _groups(state.segments) if tidy else [[s] for s in state.segments]
            segments = [_stored(group, self._folder, tidy) for group in groups]
            state = replace(state, segments=tuple(segments))
            version = manifests.write(self._folder, _manifest_of(state))
        except OSError:
            with suppress(OSError):
                manifests.sweep(self._folder)
            raise
        self._state, self._version, self._is_tidy = state, version, tidy
        manifests.sweep(self._folder)
        with suppress(OSError):
            self._old_file.unlink(missing_ok=True)


def _manifest_of(state: _State) -> Manifest:
    dead = [segment.dead_ids() for segment in state.segments]
    facts = tuple(segment.facts for segment in state.segments if segment.facts)
    ids = np.sort(np.concatenate(dead)) if dead else np.zeros(0, np.int64)
    return Manifest(state.generation, state.stamp, state.last_id, facts, ids)


def _groups(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Return neighbours that are to be one file: sizes that at least halve leave few files and little copying."""
    groups: list[list[Segment]] = []
    for segment in segments:
        groups.append([segment])
        while len(groups) > 1 and _is_large_tail(groups[-2], groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _is_large_tail(group: Sequence[Segment], tail: Sequence[Segment]) -> bool:
    share = _TAIL_SHARE_OF_LISTS if group[0].lists else _TAIL_SHARE
    return _count(group) < share * _count(tail)


def _stored(group: Sequence[Segment], folder: Path, tidy: bool) -> Segment:
    """Return a group as one segment that stands in the folder, written anew only where there is a reason."""
    first, n_lists = group[0], lists_for(_count(group)) if tidy else 0
    is_stored = first.facts is not None and (folder / first.facts.file).exists()
    is_dead = tidy and len(first.ids) - first.count > len(first.ids) // _DEAD_SHARE
    if len(group) == 1 and is_stored and not is_dead and (not n_lists or first.lists):
        return first
    return files.merged(folder, group, n_lists=n_lists)


def _compact(state: _State) -> _State:
    """Join segments in memory when they are many: each refresh of a long-lived reader leaves one."""
    loose = [segment for segment in state.segments if not segment.facts]
    if len(loose) <= _MEMORY_SEGMENTS:
        return state
    stored = [segment for segment in state.segments if segment.facts]
    joined = files.in_memory(block for segment in loose for block in files.living(segment))
    assert joined  # a state has no segment in which nothing lives
    return replace(state, segments=(*stored, joined))


def _count(segments: Sequence[Segment]) -> int:
    return sum(segment.count for segment in segments)


# --- searching ---


def _unit(query: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Return the query as a (dim,) unit vector."""
    row = np.asarray(query, np.float32).reshape(-1)
    if len(row) != dim:
        raise MismatchError(
            f"the index holds vectors of {dim} numbers, the embedder makes {len(row)}",
            "use the embedder the index was made with (--embed-model), or a new index (--index)",
        )
    length = float(np.linalg.norm(row))
    return row / length if length > 0 else row


def _ascending(chunk_rows: Collection[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    if not isinstance(chunk_rows, np.ndarray):
        chunk_rows = np.fromiter(chunk_rows, np.int64, len(chunk_rows))
    return np.unique(chunk_rows.astype(np.int64))


def _nearest(
    segment: Segment, query: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None
) -> _Scores:
    """Return the best chunks of a segment, about k and those that tie with the last; exact without lists."""
    usable = segment.alive
    if allowed is not None:
        if len(allowed) * _FEW_SHARE < len(segment.ids):
            return _exact(segment, query, _places_of(segment, allowed))
        is_allowed = np.isin(segment.chunk_rows, allowed)
        usable = is_allowed if usable is None else usable & is_allowed
    if segment.lists is None:
        scores = segment.data @ query
        if usable is not None:
            scores = np.where(usable, scores, np.float32(-np.inf))
        return _top(*_once(segment.chunk_rows, scores), k)
    return _probed(segment, query, k, usable)


def _probed(
    segment: Segment, query: NDArray[np.float32], k: int, usable: NDArray[np.bool_] | None
) -> _Scores:
    """Look at the lists nearest to the query, and at more until k chunks are found or there are no more."""
    assert segment.lists is not None
    share = 1.0 if usable is None else np.count_nonzero(usable) / len(usable)
    rows, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
    for spans in segment.lists.probes(query, share):
        more = [segment.data[first:last] @ query for first, last in spans]
        if usable is not None:
            for (first, last), part in zip(spans, more, strict=True):
                part[~usable[first:last]] = -np.inf
        found = [segment.chunk_rows[first:last] for first, last in spans]
        rows, scores = _once(np.concatenate([rows, *found]), np.concatenate([scores, *more]))
        if len(rows) >= k:
            break
    return _top(rows, scores, k)


def _exact(segment: Segment, query: NDArray[np.float32], places: NDArray[np.int64]) -> _Scores:
    """Return every chunk at these places of a segment."""
    if segment.alive is not None:
        places = places[segment.alive[places]]
    return _once(segment.chunk_rows[places], segment.data[places] @ query)


def _places_of(segment: Segment, chunk_rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the windows of chunks stand in a segment; `chunk_rows` is ascending."""
    if not _ascends(segment.chunk_rows):  # in lists
        return np.flatnonzero(np.isin(segment.chunk_rows, chunk_rows))
    first = np.searchsorted(segment.chunk_rows, chunk_rows, "left")
    counts = np.searchsorted(segment.chunk_rows, chunk_rows, "right") - first
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    places: NDArray[np.int64] = np.repeat(first, counts) + offsets
    return places


def _once(rows: NDArray[np.int64], scores: NDArray[np.float32]) -> _Scores:
    """Return each row that has a score once, ascending, with its best score."""
    if not _ascends(rows):
        order = np.argsort(rows, kind="stable")
        rows, scores = rows[order], scores[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    if len(starts) < len(rows):
        rows, scores = rows[starts], np.maximum.reduceat(scores, starts)
    real = scores > -np.inf
    return (rows, scores) if real.all() else (rows[real], scores[real])


def _ascends(rows: NDArray[np.int64]) -> bool:
    return bool((rows[1:] >= rows[:-1]).all())


def _top(rows: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> _Scores:
    """Return the k best, best first, ties by row; `rows` are each there once."""
    if len(rows) > k:
        keep = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        rows, scores = rows[keep], scores[keep]
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]
