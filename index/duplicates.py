"""Each text once: a passage whose every word stands in a better one, in the same order, is told from the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from epicrag.types import Hit

_LONG = 40  # words: a text of so many is a copy, whatever stands above it; a shorter one may mean another thing


def gathered(hits: Iterable[Hit], k: int) -> list[Hit]:
    """Return the first k hits, best first, without those that repeat a better one.

    A hit repeats another if its content is equal, or if all its words stand there in one piece: those of its text
    and, where the text is short, of the headings above it. One word or number that differs is enough to keep
    both: it may be the one that was asked for. Each hit lists the documents that were left out for it.
    """
    kept: list[Hit] = []
    words: list[str] = []
    for hit in hits:
        if len(kept) >= k:
            break
        same = next((n for n, one in enumerate(kept) if _repeats(hit, one, words[n])), None)
        if same is None:
            kept.append(hit)
            words.append(_words(hit.chunk.model_text))
        else:
            kept[same] = _with_also(kept[same], hit.chunk.document, *hit.also)
    return kept


def _with_also(hit: Hit, *paths: str) -> Hit:
    others = dict.fromkeys(path for path in (*hit.also, *paths) if path != hit.chunk.document)
    return replace(hit, also=tuple(others))


def _repeats(hit: Hit, kept: Hit, kept_words: str) -> bool:
    if hit.chunk.id == kept.chunk.id:
        return True
    words = _words(hit.chunk.text)
    if words.count(" ") < _LONG:
        words = _words(hit.chunk.model_text)
    return len(words) > 1 and words in kept_words


def _words(text: str) -> str:
    """The words of a text as they stand, signs and marks included, each between spaces."""
    return " ".join(["", *text.casefold().split(), ""])
