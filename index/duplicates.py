"""Each text once: equal and nearly equal passages are told from others by the runs of words they share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from epicrag.types import Hit

_RUN = 5  # words: shorter runs are shared by chance
_SHARED = 0.9  # of a passage's runs: what else it says is not worth a second reading
_MOST_GROWTH = 1.25  # a passage that is longer than this against the kept one says more than that
_UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")  # a character where words have no spaces


def gathered(hits: Iterable[Hit], k: int) -> list[Hit]:
    """Return the first k hits, best first, without those that repeat a better one.

    A hit repeats another if its content or its words are equal, or nine in ten of its runs of five words
    stand there. A much longer passage that holds a better hit whole does not: it says more. Each hit
    lists the documents of the hits that were left out for it.
    """
    kept: list[Hit] = []
    shapes: list[tuple[str, frozenset[int]]] = []
    for hit in hits:
        if len(kept) >= k:
            break
        shape = (hit.chunk.id, _runs(hit.chunk.text))
        same = next((n for n, other in enumerate(shapes) if _repeats(shape, other)), None)
        if same is None:
            kept.append(hit)
            shapes.append(shape)
        else:
            kept[same] = _with_also(kept[same], hit.chunk.document, *hit.also)
    return kept


def _with_also(hit: Hit, *paths: str) -> Hit:
    others = dict.fromkeys(path for path in (*hit.also, *paths) if path != hit.chunk.document)
    return replace(hit, also=tuple(others))


def _repeats(shape: tuple[str, frozenset[int]], kept: tuple[str, frozenset[int]]) -> bool:
    (chunk_id, runs), (kept_id, kept_runs) = shape, kept
    if chunk_id == kept_id or (runs and runs == kept_runs):
        return True
    if len(runs) > _MOST_GROWTH * len(kept_runs):
        return False
    return len(runs & kept_runs) > _SHARED * min(len(runs), len(kept_runs))


def _runs(text: str) -> frozenset[int]:
    """Return the hashes of all runs of five words; of a shorter text, the one of it whole."""
    words = _WORD.findall(text.casefold())
    if len(words) <= _RUN:
        return frozenset({hash(tuple(words))} if words else ())
    return frozenset(map(hash, zip(*(words[at:] for at in range(_RUN)), strict=False)))
