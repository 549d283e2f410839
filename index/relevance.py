"""Whether the passages that were found speak of what was asked.

A cosine alone does not tell: passages about something else come nearer to one question than the right ones to
another. So two things are weighed: the best cosine, and the largest share of the question's words, the rare ones
counting most, that one passage holds. The weights are those of a logistic regression on answerable and
unanswerable questions (benchmarks/bench_abstention.py) with the embedder that comes with epicrag.

How large the cosines of another embedder are, and what they mean, is read off the index itself: questions about
all sorts of things are asked of it once, and their cosines are laid over those of the known embedder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from epicrag.errors import EpicragError
from epicrag.index.words import query_words, words_of
from epicrag.types import Hit, Relevance

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder
    from epicrag.index.vectors import VectorIndex

JUDGED = 6
"""Passages that are looked at, however many are asked for."""
KNOWN = frozenset(
    {"all-minilm-l6-v2", "minilm", "all-minilm", "sentence-transformers/all-minilm-l6-v2"}
)
"""Names of the embedder that the weights were fitted with."""
BIAS, COSINE, SHARE = -6.06, 8.34, 4.24
THRESHOLD = 0.3
_SETTING = "background"
_LEAST_SPREAD = 0.02
_STALE = 2.0  # the index has grown or shrunk by this factor since


class Background(NamedTuple):
    """The best cosines of questions that have nothing to do with an index."""

    mean: float
    spread: float


USUAL = Background(0.20, 0.08)
"""Of the known embedder."""

PROBES = (
    "How do I bake sourdough bread at home?",
    "Which team won the championship that year?",
    "At what temperature does water boil on a mountain?",
    "How can I train my dog to stop barking?",
    "Which vaccines does a newborn baby need?",
    "What is the capital of Mongolia?",
    "How do I change the oil in my car?",
    "When may a king and a rook castle in chess?",
    "Why did the old empire fall?",
    "How do plants turn light into sugar?",
    "Which guitar strings are best for beginners?",
    "How do I apply for a mortgage?",
    "What causes earthquakes?",
    "How do I knit a wool scarf?",
    "Who dies at the end of Romeo and Juliet?",
    "How do I set up a wireless router?",
    "When should roses be pruned?",
    "What are the symptoms of a migraine?",
    "How many moons does Jupiter have?",
    "What do I need to pack for a week of camping?",
)


def by_score(hits: Sequence[Hit], least: float) -> Relevance:
    """Judge by the best cosine alone, as it was configured."""
    best = _best(hits)
    verdict = "reaches" if best >= least else "is below"
    reason = f"the best cosine {verdict} the configured min_score" if hits else _NOTHING
    return Relevance(bool(hits) and best >= least, best, least, "min_score", {}, reason)


def unfit() -> Relevance:
    """The filter of the search fits no passage at all: nothing was looked for."""
    return Relevance(False, 0.0, THRESHOLD, "filter", {}, "the filter fits no passage of the index")


def judged(
    catalog: Catalog, query: str, hits: Sequence[Hit], background: Background = USUAL
) -> Relevance:
    """Judge by the best cosine and by the words that the passages share with the question."""
    if not hits:
        return Relevance(False, 0.0, THRESHOLD, "auto", {}, _NOTHING)
    share = _share(catalog, query, hits[:JUDGED])
    best = _best(hits[:JUDGED])
    nearness = USUAL.mean + (best - background.mean) / background.spread * USUAL.spread
    score = 1 / (1 + math.exp(-(BIAS + COSINE * nearness + SHARE * share)))
    features = {"cosine": best, "words": share}
    if background != USUAL:
        features["nearness"] = nearness
    held = f"at most {share:.0%} of what the question's words weigh stands in one passage"
    reason = f"the best cosine is {best:.2f}, and {held}"
    return Relevance(score >= THRESHOLD, score, THRESHOLD, "auto", features, reason)


def background_of(catalog: Catalog, vectors: VectorIndex, embedder: Embedder) -> Background:
    """Return what strangers' questions score here: measured once, and kept in the catalog where it may be."""
    if embedder.name.lower() in KNOWN:
        return USUAL
    vectors.refresh(save=False)
    stored = json.loads(catalog.setting(_SETTING) or "{}")
    if stored.get("fingerprint") == embedder.fingerprint and _is_like(stored, vectors.count):
        return Background(stored["mean"], stored["spread"])
    tops = [
        score
        for probe in PROBES
        for _, score in vectors.search(embedder.query(probe), 1)
        if math.isfinite(score)
    ]
    if not tops:
        return USUAL
    mean = sum(tops) / len(tops)
    spread = math.sqrt(sum((top - mean) ** 2 for top in tops) / len(tops))
    found = Background(mean, max(spread, _LEAST_SPREAD))
    facts = {"fingerprint": embedder.fingerprint, "vectors": vectors.count, **found._asdict()}
    with suppress(EpicragError):  # an index that only may be read, or that another is writing to
        catalog.set_setting(_SETTING, json.dumps(facts))
    return found


def _is_like(stored: Mapping[str, float], count: int) -> bool:
    return stored["vectors"] <= _STALE * count and count <= _STALE * stored["vectors"]


def _share(catalog: Catalog, query: str, hits: Sequence[Hit]) -> float:
    """Return the largest share of the question's words in one passage, by how rare they are here."""
    terms = query_words(query)
    counts = catalog.frequencies(terms)
    total = catalog.chunk_count()
    weights = {term: math.log((total + 1) / (count + 0.5)) for term, count in counts.items()}
    whole = sum(weights.values())
    if whole <= 0:
        return 0.0
    held = (set(words_of(hit.chunk.model_text)) for hit in hits)
    return max(sum(w for term, w in weights.items() if term in words) for words in held) / whole


def _best(hits: Sequence[Hit]) -> float:
    return max((hit.score for hit in hits), default=-1.0)


_NOTHING = "no passage was found"
