"""How good an answer is, against the right ones: exact match, F1, ROUGE-L, containment, and intervals for their means."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ARTICLES = frozenset(("a", "an", "the"))
_CJK = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")
_NUMBERS = r"\[ *\d{1,3}(?: *[,;–-] *\d{1,3})* *"
_CITATION = re.compile(rf"\s*(?:{_NUMBERS}\]\s*)*{_NUMBERS}(?:\]|[,;–-]?\s*\Z)")


def without_citations(text: str) -> str:
    """Return an answer without its `[1]`, nor the `[1` that it was cut off in."""

    def gap(found: re.Match[str]) -> str:
        around = (
            text[max(0, found.start() - 1) : found.start()],
            text[found.end() : found.end() + 1],
        )
        return " " if all(each.isalnum() for each in around) else ""

    return _CITATION.sub(gap, text)


def words(text: str) -> list[str]:
    """Return the words of SQuAD's normalisation: lower case, no punctuation, no articles.

    For all scripts: compatibility forms are folded, punctuation is what Unicode says it is, and each Chinese
    or Japanese character is a word.
    """
    return [word for word in _all_words(text) if word not in _ARTICLES]


def _all_words(text: str) -> list[str]:
    text = unicodedata.normalize("NFKC", text).casefold()
    text = "".join(c for c in text if not _is_punctuation(c))
    return _CJK.sub(r" \1 ", text).split()


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1 where the answer has the words of one of `golds`, else 0."""
    return _best(lambda found, gold: float(found == gold), *_own(words, answer, golds))


def contains(answer: str, golds: Sequence[str]) -> float:
    """1 where one of `golds` stands in the answer, word by word, whatever stands around it; else 0."""
    said, wanted = without_citations(answer), [without_citations(gold) for gold in golds]
    return float(holds(said, wanted) or exact_match(answer, golds) == 1)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, for the best of `golds`."""
    return _best(_f1, *_own(words, answer, golds))


def _f1(found: list[str], gold: list[str]) -> float:
    common = sum((Counter(found) & Counter(gold)).values())
    return _harmonic(common, found, gold)


def rouge_l(answer: str, golds: Sequence[str]) -> float:
    """F-measure of the longest common subsequence of words, articles included, for the best of `golds`."""
    return _best(_rouge_l, *_own(_all_words, answer, golds))


def _rouge_l(found: list[str], gold: list[str]) -> float:
    return _harmonic(common_subsequence(found, gold), found, gold)


def _harmonic(common: int, found: list[str], gold: list[str]) -> float:
    if not found or not gold:
        return float(found == gold)
    return 2 * common / (len(found) + len(gold))


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest sequence of words that stands in both, in order, not necessarily together."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for at, candidate in enumerate(other, 1):
            above = row[at]
            row[at] = diagonal + 1 if word == candidate else max(above, row[at - 1])
            diagonal = above
    return row[-1]


def _own(
    split: Callable[[str], list[str]], answer: str, golds: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The words of an answer and of each right one; citation marks are nobody's words."""
    return split(without_citations(answer)), [split(without_citations(gold)) for gold in golds]


def _best(
    score: Callable[[list[str], list[str]], float], found: list[str], golds: list[list[str]]
) -> float:
    return max((score(found, gold) for gold in golds), default=0.0)


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether a text has the words of one of `answers`, one after the other."""
    inside = f" {' '.join(words(text))} "
    wanted = [" ".join(words(answer)) for answer in answers]
    return any(answer and f" {answer} " in inside for answer in wanted)


# --- many answers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with the interval that holds it in 95 % of resampled sets; `n` values."""

    mean: float
    low: float
    high: float
    n: int


def mean_of(values: Sequence[float], *, seed: int = 0, resamples: int = 2000) -> Mean | None:
    """Mean and bootstrap interval (percentiles); None for no values. For pairs, give their differences."""
    if not values:
        return None
    import numpy as np

    data = np.asarray(values, np.float64)
    picks = np.random.default_rng(seed).integers(0, len(data), (resamples, len(data)))
    low, high = np.percentile(data[picks].mean(axis=1), (2.5, 97.5))
    return Mean(float(data.mean()), float(low), float(high), len(values))
