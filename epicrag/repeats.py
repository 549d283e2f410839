"""Notices when a model has begun to go round in circles: the same sentence a second time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.serving.generation import Generation

REPEATS = "repeats"
"""The `finish_reason` of an answer that was stopped because it began to repeat itself."""

_SENTENCE = re.compile(r"[^.!?。！？\n]*[.!?。！？\n]+")
_MARKER = re.compile(r"\[\d+\]")
_MIN_WORDS = 4
"""Shorter sentences ("Yes.", "Step 2.") may well stand twice."""


class Repeats:
    """Fed the model's text as it comes; says whether a whole sentence in it has stood there before."""

    def __init__(self) -> None:
        self._rest = ""
        self._seen: set[str] = set()
        self._fenced = False

    def feed(self, delta: str) -> bool:
        """Take the next piece of text; True when it ends a sentence that was said already.

        Lines of code are not sentences: between fences nothing counts.
        """
        self._rest += delta
        end = 0
        repeated = False
        for found in _SENTENCE.finditer(self._rest):
            end = found.end()
            repeated |= self._is_known(found[0])
        self._rest = self._rest[end:]
        return repeated

    def _is_known(self, sentence: str) -> bool:
        if sentence.count("```") % 2:
            self._fenced = not self._fenced
        words = _MARKER.sub(" ", sentence).casefold().split()
        if self._fenced or len(words) < _MIN_WORDS:
            return False
        text = " ".join(words)
        known = text in self._seen
        self._seen.add(text)
        return known


class UntilRepeat:
    """A generation's deltas, to the end of the first whole sentence that has stood there before.

    The model is stopped there, and `finish_reason` is REPEATS. Everything that shows an answer reads it so. What
    follows a grammar is no prose, and is read as it is: values may well be equal, and half of a JSON is none.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._repeats = Repeats()
        self._is_stopped = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._is_stopped:
            raise StopIteration
        delta = next(self._generation)
        if not self._generation.is_constrained and self._repeats.feed(delta):
            self._is_stopped = True
            self._generation.close()
        return delta

    @property
    def finish_reason(self) -> str:
        return REPEATS if self._is_stopped else self._generation.finish_reason
