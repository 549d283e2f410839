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


Token = tuple[int, int]
"""An id, and the character where it ends."""


class Tokenizer(Protocol):
    def tokens(self, text: str, *, behind: bool = False) -> Sequence[Token]:
        """`behind`: of a text that has other text before it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [first, last) of a known text, standing in another one.

    `ends[i]` is where token i ends in the known text, in characters, and `ids[i]` which it is.
    """

    text: str
    ends: Sequence[int]
    ids: Sequence[int]
    start: int
    """Where character 0 of the known text would stand in the other one; may be below 0."""
    first: int
    last: int

    @classmethod
    def of(
        cls, text: str, ends: Sequence[int], ids: Sequence[int], start: int, low: int, high: int
    ) -> Stretch | None:
        """The whole tokens within characters [low, high) of the known text; None where there are none."""
        first = bisect_left(ends, low) + 1 if low else 0
        last = bisect_right(ends, high)
        made = cls(text, ends, ids, start, first, last)
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

    def tail(self) -> tuple[str, list[Token]]:
        """The text of its last tokens, and those that are compared, counted from the end of the stretch."""
        high = self._at(self.last)
        low = self._at(self.last - _CONTEXT)
        first = self.last - _CHECKED
        while not self._is_joint(first):
            first -= 1
        return self.text[low:high], self._tokens(first, self.last, high)

    def head(self) -> tuple[str, list[Token]]:
        """The text of its first tokens, and those that are compared, counted from its beginning."""
        low = self._at(self.first)
        high = self._at(self.first + _CONTEXT)
        last = self.first + _CHECKED
        while not self._is_joint(last):
            last += 1
        return self.text[low:high], self._tokens(self.first, last, low)

    def _tokens(self, first: int, last: int, origin: int) -> list[Token]:
        return [(self.ids[n], self.ends[n] - origin) for n in range(first, last)]

    def _at(self, token: int) -> int:
        return self.ends[token - 1] if token else 0

    def _is_joint(self, token: int) -> bool:
        """Whether a character ends where token `token` begins: some are several tokens, and some tokens are none."""
        return token in (0, len(self.ends)) or self.ends[token] > self.ends[token - 1] > 0


def seamless(text: str, stretches: Sequence[Stretch], tokenizer: Tokenizer) -> list[Stretch | None]:
    """Cut stretches of `text`, given in order, so that it falls into the same tokens piece by piece as whole.

    Looked at is what stands around each seam. Where no cut of a few tokens does it, None stands for the stretch.
    """
    done = list(enumerate(stretches))
    index = 0
    while done and index <= len(done):
        left = done[index - 1][1] if index else None
        right = done[index][1] if index < len(done) else None
        one, two = _cut_gap(text, left, right, tokenizer)
        if left and one:
            done[index - 1] = (done[index - 1][0], one)
        if right and two:
            done[index] = (done[index][0], two)
        if right and not two:
            del done[index]  # the gap is a longer one now
        elif left and not one:
            del done[index - 1]
            index -= 1
        else:
            index += 1
    found: list[Stretch | None] = [None] * len(stretches)
    for place, stretch in done:
        found[place] = stretch
    return found


def _cut_gap(
    text: str, left: Stretch | None, right: Stretch | None, tokenizer: Tokenizer
) -> tuple[Stretch | None, Stretch | None]:
    """What stands beside one gap, cut; None for what no cut makes fit, of two the one behind."""
    low, high = left.high if left else 0, right.low if right else len(text)
    if high - low > _SHORT:
        one = left and _cut(text, left, None, tokenizer)[0]
        return one, right and _cut(text, None, right, tokenizer)[1]
    one, two = _cut(text, left, right, tokenizer, whole=True)
    return (one, two) if one or two or not right else (left, None)


def _cut(
    text: str,
    left: Stretch | None,
    right: Stretch | None,
    tokenizer: Tokenizer,
    *,
    whole: bool = False,
) -> tuple[Stretch | None, Stretch | None]:
    """The least cut at the seams of one gap; nothing where none does it."""
    most = range(MOST_LEFT + 1)
    tries = [(i, j) for i in (most if left else [0]) for j in (most if right else [0])]
    for back, front in sorted(tries, key=sum):
        one = left.less(0, back) if left else None
        two = right.less(front, 0) if right else None
        if (left and not one) or (right and not two):
            continue
        if _fits(text, one, two, tokenizer, whole):
            return one, two
    return None, None


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
    before, left_tokens = left.tail() if left else ("", [])
    behind, right_tokens = right.head() if right else ("", [])
    alone = [
        *left_tokens,
        *tokenizer.tokens(gap, behind=left is not None),
        *_moved(right_tokens, len(gap)),
    ]
    together = _moved(tokenizer.tokens(before + gap + behind), -len(before))
    first = left_tokens[0][1] if left else skip_low
    last = len(gap) + right_tokens[-1][1] if right else len(gap) - skip_high
    return _within(alone, first, last) == _within(together, first, last)


def _moved(tokens: Sequence[Token], by: int) -> list[Token]:
    return [(token, end + by) for token, end in tokens]


def _within(tokens: Sequence[Token], first: int, last: int) -> list[Token]:
    return [token for token in tokens if first <= token[1] <= last]
