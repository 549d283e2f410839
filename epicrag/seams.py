"""Cached passages within a text, cut so that the model reads the tokens it would read anyway.

A tokenizer reads the end of a passage and what follows it together: a full stop and two line ends may be one
token, or three. Where a passage taken out alone would become other tokens than it is within the text, some of its
tokens are left to the text around it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

MOST_LEFT = 5
"""Tokens at either end of a passage that may be left to the text around it."""

_CONTEXT, _CHECKED = 12, 4
"""Tokens of a passage that are read together with what is beside it, and those of them that are compared."""

_SHORT = 1_000
_WINDOW = 160
"""Text between two passages up to _SHORT characters is read whole, else this much at either end."""


class Tokenizer(Protocol):
    def ends(self, text: str) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [first, last) of a known text, standing in another one.

    `ends[i]` is where token i ends in the known text, in characters.
    """

    text: str
    ends: Sequence[int]
    start: int
    """Where character 0 of the known text would stand in the other one; may be below 0."""
    first: int
    last: int

    @classmethod
    def of(cls, text: str, ends: Sequence[int], start: int, low: int, high: int) -> Stretch | None:
        """The whole tokens within characters [low, high) of the known text; None where there are none."""
        first = bisect_left(ends, low) + 1 if low else 0
        last = bisect_right(ends, high)
        made = cls(text, ends, start, first, last)
        while made.first < last and not made._is_joint(made.first):
            made = replace(made, first=made.first + 1)
        while last > made.first and not made._is_joint(made.last):
            last -= 1
            made = replace(made, last=last)
        return made if made.n_tokens > 0 else None

    @property
    def n_tokens(self) -> int:
        return self.last - self.first

    @property
    def span(self) -> tuple[int, int]:
        """Characters of the known text."""
        return self._at(self.first), self._at(self.last)

    @property
    def low(self) -> int:
        """Where it begins in the other text."""
        return self.start + self._at(self.first)

    @property
    def high(self) -> int:
        return self.start + self._at(self.last)

    def less(self, front: int, back: int) -> Stretch | None:
        """The same without some tokens at its ends; None where it cannot be cut there."""
        made = replace(self, first=self.first + front, last=self.last - back)
        if made.n_tokens < _CONTEXT or not (
            made._is_joint(made.first) and made._is_joint(made.last)
        ):
            return None
        return made

    def tail(self) -> tuple[str, list[int]]:
        """The text of its last tokens, and where they end, counted from the end of the stretch."""
        high = self._at(self.last)
        low = self._at(self.last - _CONTEXT)
        return self.text[low:high], [
            end - high for end in self.ends[self.last - _CHECKED : self.last]
        ]

    def head(self) -> tuple[str, list[int]]:
        """The text of its first tokens, and where they end, counted from its beginning."""
        low = self._at(self.first)
        high = self._at(self.first + _CONTEXT)
        return self.text[low:high], [
            end - low for end in self.ends[self.first : self.first + _CHECKED]
        ]

    def _at(self, token: int) -> int:
        return self.ends[token - 1] if token else 0

    def _is_joint(self, token: int) -> bool:
        """Whether a character ends where token `token` begins: some characters are several tokens."""
        return token in (0, len(self.ends)) or self.ends[token] > self.ends[token - 1]


def seamless(text: str, stretches: Sequence[Stretch], tokenizer: Tokenizer) -> list[Stretch]:
    """Cut stretches of `text`, given in order, so that it falls into the same tokens piece by piece as whole.

    Looked at is what stands around each seam. Where no cut of a few tokens does it, there is none: the model then
    reads the same characters in slightly other tokens.
    """
    done = list(stretches)
    for index in range(len(done) + 1):
        left = done[index - 1] if index else None
        right = done[index] if index < len(done) else None
        low, high = left.high if left else 0, right.low if right else len(text)
        if high - low > _SHORT:
            left = _cut(text, left, None, tokenizer)[0]
            right = _cut(text, None, right, tokenizer)[1]
        else:
            left, right = _cut(text, left, right, tokenizer, whole=True)
        if left:
            done[index - 1] = left
        if right:
            done[index] = right
    return done


def _cut(
    text: str,
    left: Stretch | None,
    right: Stretch | None,
    tokenizer: Tokenizer,
    *,
    whole: bool = False,
) -> tuple[Stretch | None, Stretch | None]:
    """The least cut at the seams of one gap; no cut where none does it."""
    most = range(MOST_LEFT + 1)
    tries = [(i, j) for i in (most if left else [0]) for j in (most if right else [0])]
    for back, front in sorted(tries, key=sum):
        one = left.less(0, back) if left else None
        two = right.less(front, 0) if right else None
        if (left and not one) or (right and not two):
            continue
        if _fits(text, one, two, tokenizer, whole):
            return one, two
    return left, right


def _fits(
    text: str, left: Stretch | None, right: Stretch | None, tokenizer: Tokenizer, whole: bool
) -> bool:
    """Whether a gap's text and the stretches beside it are the same tokens alone as together."""
    low, high = left.high if left else 0, right.low if right else len(text)
    skip_low = skip_high = 0
    if not whole and left:
        high, skip_high = low + _WINDOW, _WINDOW // 2
    elif not whole:
        low, skip_low = high - _WINDOW, _WINDOW // 2
    gap = text[low:high]
    before, before_ends = left.tail() if left else ("", [])
    behind, behind_ends = right.head() if right else ("", [])
    alone = [*before_ends, *tokenizer.ends(gap), *(len(gap) + end for end in behind_ends)]
    together = [end - len(before) for end in tokenizer.ends(before + gap + behind)]
    first = before_ends[0] if left else skip_low
    last = len(gap) + behind_ends[-1] if right else len(gap) - skip_high
    return _within(alone, first, last) == _within(together, first, last)


def _within(ends: Sequence[int], first: int, last: int) -> list[int]:
    return [end for end in ends if first <= end <= last]
