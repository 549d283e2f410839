"""A text in parts is the same tokens as the text whole."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from epicrag.seams import Stretch, seamless

PASSAGE = "The ferry leaves every hour. " + " ".join(f"Word{n} follows word{n}." for n in range(30))


class Joining:
    """Tokens as GPT's are: a space goes with its word, punctuation with the line ends behind it, line ends
    behind which a word stands leave the last of them alone."""

    def ends(self, text: str) -> Sequence[int]:
        pattern = r" ?\w+| ?[^\s\w]+\n*|\s+(?!\S)|\s+"
        return [found.end() for found in re.finditer(pattern, text)]


def stretch(flat: str, text: str, low: int = 0, high: int | None = None) -> Stretch:
    high = len(text) if high is None else high
    shown = text[low:high]
    made = Stretch.of(text, Joining().ends(text), flat.index(shown) - low, low, high)
    assert made is not None
    return made


def tokens_of(flat: str, stretches: Sequence[Stretch]) -> list[int]:
    """Where the tokens end when every part is tokenised alone."""
    ends: list[int] = []
    done = 0
    for one in stretches:
        ends += [done + end for end in Joining().ends(flat[done : one.low])]
        ends += [one.start + end for end in one.ends[one.first : one.last]]
        done = one.high
    return [*ends, *(done + end for end in Joining().ends(flat[done:]))]


@pytest.mark.parametrize(
    "behind", ["", "\n", "\n\n", "\n\n---\nQuery: ", " And so on.", "s", "!\n"]
)
@pytest.mark.parametrize("before", ["", "Context:\n\n", "Context: ", "-----\n", "see"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "  "])
def test_tokens_are_those_of_the_whole_text(before: str, behind: str, end: str):
    flat = before + PASSAGE + behind
    common = len(PASSAGE) + next(n for n in range(len(end), -1, -1) if behind.startswith(end[:n]))
    one = Stretch.of(PASSAGE + end, Joining().ends(PASSAGE + end), len(before), 0, common)
    (cut,) = seamless(flat, [one], Joining())
    assert tokens_of(flat, [cut]) == Joining().ends(flat)
    assert one.n_tokens - cut.n_tokens <= 4
    low, high = cut.span
    assert (PASSAGE + end)[low:high] == flat[cut.low : cut.high]


def test_passages_that_follow_each_other():
    texts = [PASSAGE.replace("ferry", name) + "\n\n" for name in ("ferry", "tram", "bus")]
    flat = "Sources:\n" + "".join(texts) + "\nQuestion?"
    cut = seamless(flat, [stretch(flat, text) for text in texts], Joining())
    assert tokens_of(flat, cut) == Joining().ends(flat)
    assert sum(one.n_tokens for one in cut) > 0.95 * len(Joining().ends("".join(texts)))


def test_long_text_between_passages_is_looked_at_only_at_its_ends():
    seen: list[int] = []

    class Counting(Joining):
        def ends(self, text: str) -> Sequence[int]:
            seen.append(len(text))
            return super().ends(text)

    between = "\nSomething else entirely.\n" * 500
    other = PASSAGE.replace("ferry", "tram")
    flat = PASSAGE + between + other
    cut = seamless(flat, [stretch(flat, PASSAGE), stretch(flat, other)], Counting())
    assert max(seen) < 2_000
    assert tokens_of(flat, cut) == Joining().ends(flat)


def test_span_begins_and_ends_with_whole_tokens():
    one = stretch(PASSAGE, PASSAGE, low=6, high=len(PASSAGE) - 3)
    low, high = one.span
    assert PASSAGE[low:].startswith(" leaves") or low == PASSAGE.index(" leaves")
    assert high <= len(PASSAGE) - 3
    assert Stretch.of(PASSAGE, Joining().ends(PASSAGE), 0, 5, 7) is None


def test_characters_of_several_tokens_are_not_cut():
    class Bytes:
        def ends(self, text: str) -> Sequence[int]:
            return [n + 1 for n, letter in enumerate(text) for _ in letter.encode()]

    text = "渡船每小时一班" * 8
    one = Stretch.of(text, Bytes().ends(text), 0, 1, len(text) - 1)
    assert one is not None
    assert one.span == (1, len(text) - 1)
    (cut,) = seamless(text, [one], Bytes())
    assert cut == one


def test_where_no_cut_does_it_there_is_none():
    class Whole:
        """A tokenizer to which a text is one token more than its parts."""

        def ends(self, text: str) -> Sequence[int]:
            return [*range(2 - len(text) % 2, len(text), 2), len(text)]

    text = "abcdefgh" * 20
    one = Stretch(text, list(range(1, len(text) + 1)), 3, 0, len(text))
    assert seamless("xyz" + text + "end", [one], Whole()) == [one]
