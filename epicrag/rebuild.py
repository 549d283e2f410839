"""Made again from what the catalog holds: its vectors by another embedder, or the fast copies of both."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epicrag.errors import DeviceError
from epicrag.ingest import EMBED_BATCH, Event, Progress, finite

if TYPE_CHECKING:
    from epicrag.index.embed import Embedder
    from epicrag.index.staging import Staging
    from epicrag.pipeline import Pipeline

_VECTOR_COPIES = 4
"""On disk at the worst moment: staged, in their place, in the log of the transaction, and in the fast copy."""
_SPARE_BYTES = 16 << 20
SAMPLE = 16
"""Passages that are embedded anew to see whether the vectors are theirs."""
_LIKE = 0.99
"""The cosine of a vector with itself, embedded on another machine or in other batches."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did. `old` and `new` are names of embedders; None where nothing was embedded."""

    chunks: int
    vectors: int
    embedded: int = 0
    """Chunks that this run embedded; those that an earlier one had staged are not among them."""
    resumed: int = 0
    old: str | None = None
    new: str | None = None
    interrupted: bool = False
    ms: float = 0.0


def rebuild(pipeline: Pipeline, *, words: bool = True, progress: Progress | None = None) -> Rebuilt:
    """Make the fast copies again from the catalog alone: of vectors, and of `words`. Loads no model."""
    from epicrag.index.lock import WriterLock
    from epicrag.index.vectors import VectorIndex

    began = time.perf_counter()
    with WriterLock(pipeline.config.index):
        counts = pipeline.catalog.counts()
        if words:
            if progress:
                progress(Event("doing", message=f"making the words of {counts.chunks:,} passages"))
            pipeline.catalog.renew_words()
        VectorIndex.renew(pipeline.catalog, pipeline.config.index)
    return Rebuilt(counts.chunks, counts.vectors, ms=_ms(began))


def reembed(pipeline: Pipeline, *, progress: Progress | None = None) -> Rebuilt:
    """Embed every stored chunk with the configured embedder, beside the vectors in use, and then switch.

    Nothing is read again, and KV stays as it is. Until the switch, one transaction, the index answers with
    the old vectors; a run that was ended, however, goes on where it stopped. Ctrl-C returns early with a
    result that says so. DeviceError: the disk has no room for it.
    """
    from epicrag.index.lock import WriterLock
    from epicrag.index.retrieve import SETTING, facts_of
    from epicrag.index.staging import Staging

    began = time.perf_counter()
    pipeline.refuse_empty()
    with WriterLock(pipeline.config.index):
        catalog, staging, embedder = pipeline.catalog, Staging(pipeline.catalog), pipeline.embedder
        old = embedder_of(pipeline)
        counts = catalog.counts()
        if old.get("fingerprint") == embedder.fingerprint and not misfits(pipeline)[1]:
            if staging.embedder:
                staging.drop()
            catalog.set_setting(
                SETTING, json.dumps(facts_of(embedder))
            )  # it may have another name now
            added = _add_lost(pipeline)
            return Rebuilt(counts.chunks, catalog.vector_count(), added, ms=_ms(began))
        _check_room(pipeline, embedder, counts.vectors)
        staging.begin(embedder)
        resumed, embedded, interrupted = staging.count, 0, False
        try:
            embedded = _stage(pipeline, staging, counts.chunks, progress or (lambda event: None))
            staging.switch()
            catalog.set_setting("embedder_identity", pipeline.embedder_identity())
            pipeline.vectors.refresh()
        except KeyboardInterrupt:
            interrupted, embedded = True, staging.count - resumed
    return Rebuilt(
        chunks=counts.chunks,
        vectors=catalog.counts().vectors,
        embedded=embedded,
        resumed=resumed,
        old=str(old.get("name")),
        new=embedder.name,
        interrupted=interrupted,
        ms=_ms(began),
    )


def misfits(pipeline: Pipeline) -> tuple[int, list[int]]:
    """Embed a sample of passages anew: return how many, and the rows of those whose vectors are not theirs.

    A passage without vectors is none of them.
    """
    import numpy as np

    catalog = pipeline.catalog
    rows = sorted({int(row) for row in catalog.vector_rows()[1]})
    rows = rows[:: max(len(rows) // SAMPLE, 1)][:SAMPLE]
    texts = [catalog.chunk(row).model_text for row in rows]
    bad = []
    for row, again in zip(rows, pipeline.embedder.passages(texts) if rows else (), strict=True):
        held = catalog.windows(row)
        with np.errstate(all="ignore"):
            fits = held.shape == again.shape and bool(
                (np.einsum("ij,ij->i", held, again) >= _LIKE).all()
            )
        if not fits:
            bad.append(row)
    return len(rows), bad


def _add_lost(pipeline: Pipeline) -> int:
    """Embed passages that have no vectors; return how many got some. The embedder makes nothing of others."""
    catalog, added = pipeline.catalog, 0
    lost = catalog.without_vectors()
    for at in range(0, len(lost), EMBED_BATCH):
        rows = lost[at : at + EMBED_BATCH]
        found = pipeline.embedder.passages([catalog.chunk(row).model_text for row in rows])
        known = [
            (row, windows)
            for row, windows in zip(rows, map(finite, found), strict=True)
            if len(windows)
        ]
        if known:
            catalog.add_vectors([row for row, _ in known], [windows for _, windows in known])
        added += len(known)
    if added:
        pipeline.vectors.refresh()
    return added


def embedder_of(pipeline: Pipeline) -> dict[str, object]:
    """Name, fingerprint and dim of the embedder that the index was made with; empty when with none."""
    from epicrag.index.retrieve import SETTING

    stored: dict[str, object] = json.loads(pipeline.catalog.setting(SETTING) or "{}")
    return stored


def _stage(pipeline: Pipeline, staging: Staging, total: int, progress: Progress) -> int:
    """Embed what has no staged vectors, a transaction a batch; return how many chunks that were."""
    catalog, embedder = pipeline.catalog, pipeline.embedder
    began, before, done = time.perf_counter(), staging.count, 0
    while rows := staging.missing(EMBED_BATCH):
        texts = [catalog.chunk(row).model_text for row in rows]
        staging.add(rows, embedder.passages(texts))
        done += len(rows)
        seconds = time.perf_counter() - began
        left = seconds / done * max(total - before - done, 0)
        progress(Event("reembed", before + done, total, seconds=seconds, left=left))
    return done


def _check_room(pipeline: Pipeline, embedder: Embedder, vectors: int) -> None:
    needed = _VECTOR_COPIES * vectors * (4 * embedder.dim + 64) + _SPARE_BYTES
    free = shutil.disk_usage(pipeline.config.index).free
    if free < needed:
        raise DeviceError(
            f"the disk at {pipeline.config.index} has {free >> 20:,} MiB free, and {needed >> 20:,} MiB"
            " are needed to hold the new vectors beside the old",
            "free some space, for one with `epicrag gc`, and run it again",
        )


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000
