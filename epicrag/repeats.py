"""Notices when a model has begun to go round in circles: a sentence a second time, or a few characters over and over."""

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
_LOOP = 96
"""Characters, at least, that a loop of a few characters goes on for: rows of a table have some zeros, too."""
_TIMES = 8
"""And how often it goes round in them."""
_WITHOUT_WORDS = 4
"""How many times longer a rule of dashes or dots may be."""
_LONGEST = 64
"""Characters of what is looked for over and over: longer lines are sentences."""


class Repeats:
    """Fed the model's text as it comes; says whether a whole sentence in it has stood there before, or whether it
    ends in a loop: one digit, one short line."""

    def __init__(self) -> None:
        self._rest = ""
        self._tail = ""
        self._seen: set[str] = set()
        self._fenced = False

    def feed(self, delta: str) -> bool:
        """Take the next piece of text; True when it ends a sentence that was said already, or a loop.

        Lines of code are not sentences: between fences nothing counts.
        """
        self._rest += delta
        end = 0
        repeated = False
        for found in _SENTENCE.finditer(self._rest):
            end = found.end()
            repeated |= self._is_known(found[0])
        self._rest = self._rest[end:]
        self._tail = (self._tail + delta)[-_TIMES * _LONGEST * _WITHOUT_WORDS :]
        return repeated or (not self._fenced and _is_loop(self._tail))

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


def _is_loop(text: str) -> bool:
    """Whether a text ends in a few characters that stand there over and over."""
    for width in range(1, _LONGEST + 1):
        once = text[-width:]
        if not text.endswith(once, 0, len(text) - width):
            continue  # as good as always
        length = max(_LOOP, _TIMES * width)
        if not any(map(str.isalnum, once)):
            length *= _WITHOUT_WORDS
        end = text[-length:]
        if len(end) == length and end[width:] == end[:-width]:
            return True
    return False


class UntilRepeat:
    """A generation's deltas, to the end of the first whole sentence that has stood there before, or into a loop.

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
