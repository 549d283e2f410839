"""A text in parts is the same tokens as the text whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from epicrag.seams import Stretch, Token, seamless

PASSAGE = "The ferry leaves every hour. " + " ".join(f"Word{n} follows word{n}." for n in range(30))


class Joining:
    """Tokens as GPT's are: a space goes with its word, punctuation with the line ends behind it, line ends
    behind which a word stands leave the last of them alone."""

    def tokens(self, text: str, *, behind: bool = False) -> Sequence[Token]:
        pattern = r" ?\w+| ?[^\s\w]+\n*|\s+(?!\S)|\s+"
        return [(hash(found[0]), found.end()) for found in re.finditer(pattern, text)]


def made_of(text: str, start: int, low: int, high: int, tokenizer: Any = None) -> Stretch | None:
    tokens = (tokenizer or Joining()).tokens(text)
    ids, ends = [token for token, _ in tokens], [end for _, end in tokens]
    return Stretch.of(text, ends, ids, start, low, high)


def stretch(flat: str, text: str, low: int = 0, high: int | None = None) -> Stretch:
    high = len(text) if high is None else high
    shown = text[low:high]
    made = made_of(text, flat.index(shown) - low, low, high)
    assert made is not None
    return made


def tokens_of(flat: str, stretches: Sequence[Stretch | None]) -> list[Token]:
    """The tokens, and where they end, when every part is tokenised alone."""
    found: list[Token] = []
    done = 0
    for one in stretches:
        assert one is not None
        found += [(token, done + end) for token, end in Joining().tokens(flat[done : one.low])]
        found += [(one.ids[n], one.start + one.ends[n]) for n in range(one.first, one.last)]
        done = one.high
    return [*found, *((token, done + end) for token, end in Joining().tokens(flat[done:]))]


@pytest.mark.parametrize(
    "behind", ["", "\n", "\n\n", "\n\n---\nQuery: ", " And so on.", "s", "!\n"]
)
@pytest.mark.parametrize("before", ["", "Context:\n\n", "Context: ", "-----\n", "see"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "  "])
def test_tokens_are_those_of_the_whole_text(before: str, behind: str, end: str):
    flat = before + PASSAGE + behind
    common = len(PASSAGE) + next(n for n in range(len(end), -1, -1) if behind.startswith(end[:n]))
    one = made_of(PASSAGE + end, len(before), 0, common)
    (cut,) = seamless(flat, [one], Joining())
    assert cut is not None
    assert tokens_of(flat, [cut]) == Joining().tokens(flat)
    assert one.n_tokens - cut.n_tokens <= 4
    low, high = cut.span
    assert (PASSAGE + end)[low:high] == flat[cut.low : cut.high]


def test_passages_that_follow_each_other():
    texts = [PASSAGE.replace("ferry", name) + "\n\n" for name in ("ferry", "tram", "bus")]
    flat = "Sources:\n" + "".join(texts) + "\nQuestion?"
    cut = seamless(flat, [stretch(flat, text) for text in texts], Joining())
    assert tokens_of(flat, cut) == Joining().tokens(flat)
    assert sum(one.n_tokens for one in cut if one) > 0.95 * len(Joining().tokens("".join(texts)))


def test_long_text_between_passages_is_looked_at_only_at_its_ends():
    seen: list[int] = []

    class Counting(Joining):
        def tokens(self, text: str, *, behind: bool = False) -> Sequence[Token]:
            seen.append(len(text))
            return super().tokens(text, behind=behind)

    between = "\nSomething else entirely.\n" * 500
    other = PASSAGE.replace("ferry", "tram")
    flat = PASSAGE + between + other
    cut = seamless(flat, [stretch(flat, PASSAGE), stretch(flat, other)], Counting())
    assert max(seen) < 2_000
    assert tokens_of(flat, cut) == Joining().tokens(flat)


def test_span_begins_and_ends_with_whole_tokens():
    one = stretch(PASSAGE, PASSAGE, low=6, high=len(PASSAGE) - 3)
    low, high = one.span
    assert PASSAGE[low:].startswith(" leaves") or low == PASSAGE.index(" leaves")
    assert high <= len(PASSAGE) - 3
    assert made_of(PASSAGE, 0, 5, 7) is None


def test_characters_of_several_tokens_are_not_cut():
    class Bytes:
        def tokens(self, text: str, *, behind: bool = False) -> Sequence[Token]:
            return [(byte, n + 1) for n, letter in enumerate(text) for byte in letter.encode()]

    text = "渡船每小时一班" * 8
    one = made_of(text, 0, 1, len(text) - 1, Bytes())
    assert one is not None
    assert one.span == (1, len(text) - 1)
    (cut,) = seamless(text, [one], Bytes())
    assert cut == one


class Counted(Joining):
    """A tokenizer to which a text of letters is other tokens wherever it is not a whole one."""

    def tokens(self, text: str, *, behind: bool = False) -> Sequence[Token]:
        return [(token + len(text) * ("#" in text), end) for token, end in super().tokens(text)]


def test_where_no_cut_does_it_there_is_none_and_its_neighbours_stay():
    texts = [PASSAGE.replace("ferry", name) + "\n\n" for name in ("ferry", "tram", "bus")]
    parts = [texts[0], "see # and #\n", texts[1], "And so on. " * 50, texts[2]]
    flat = "".join(parts)
    stretches = [stretch(flat, text) for text in texts]
    first, second, third = seamless(flat, stretches, Counted())
    assert first is None
    assert second is None
    assert third is not None
    assert seamless(flat, stretches[:1], Counted()) == [None]
    assert seamless(flat, [], Counted()) == []
