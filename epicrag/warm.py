"""KV computed before it is asked for: of all passages, of some documents, or of what questions find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.documents import named
from epicrag.ingest import IngestResult, Progress, compile_kv

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a `warm` did: of `wanted` chunks, `ready` have their KV on disk now."""

    wanted: int
    ready: int
    run: IngestResult


def warm(
    pipeline: Pipeline,
    names: Sequence[str] = (),
    *,
    questions: Path | None = None,
    top: int | None = None,
    k: int | None = None,
    progress: Progress | None = None,
) -> Warmed:
    """Compute the KV that is missing of the chunks of the named documents (all without a name).

    `questions` is a file as `eval` reads it: only what the `k` passages found for each hold. `top` keeps the
    chunks that were retrieved most often, as far as the index counts that. Ctrl-C loses nothing.
    """
    pipeline.refuse_empty()
    rows = _rows(pipeline, names, questions, k)
    if top is not None:
        rows = _most_used(pipeline, rows)[:top]
    run = compile_kv(pipeline, set(rows), progress)
    catalog, store = pipeline.catalog, pipeline.kv_store
    keys = [catalog.kv_key(row) for row in rows]
    ready = sum(key is not None and store.contains(key) for key in keys)
    return Warmed(len(rows), ready, run)


def _rows(
    pipeline: Pipeline, names: Sequence[str], questions: Path | None, k: int | None
) -> list[int]:
    """The rows of the chunks that are meant, in the order in which they are worth most."""
    catalog = pipeline.catalog
    found = [(row, path) for row, _, path in catalog.chunk_rows()]
    if names:
        meant = {row.path for row in named(catalog.documents(), names)}
        found = [(row, path) for row, path in found if path in meant]
    rows = [row for row, _ in found]
    if questions is None:
        return rows
    from epicrag.questions import read_items

    allowed = set(rows)
    hits = (hit for item in read_items(questions) for hit in pipeline.search(item.question, k=k))
    return [row for row in dict.fromkeys(hit.row for hit in hits) if row in allowed]


def _most_used(pipeline: Pipeline, rows: Sequence[int]) -> list[int]:
    """The rows, the most often retrieved first."""
    uses = pipeline.catalog.uses()
    return sorted(rows, key=lambda row: -uses.get(row, 0))
