"""Put `[n]` markers into an answer as it streams: the model's own where valid, ours where it wrote none.

A small model often forgets to cite. A sentence without a marker is then attributed to the passages
that contain most of its content words, weighted by how rare they are among the passages.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

ENOUGH = 0.5
"""A passage is cited when it holds this share of a sentence's weighted words, or two do together."""
SECOND = 0.3
"""A second passage must add at least this share."""
ASKED = 0.3
"""Weight of a word that the question had already: weak evidence of where an answer comes from."""

_WORD = re.compile(r"[^\W_]+(?:['’.,:/-][^\W_]+)*")
_UNIT = re.compile(r"-(?=[^\W\d_]{2})")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")
_MARKER = r"\[ *\d{1,3}(?: *[,;–-] *\d{1,3})* *\]"
_TOKEN = re.compile(
    rf"(?P<marker>{_MARKER}(?!\())|(?P<fence>```)|(?P<space>\s+)|[^\s\[`。！？]+|[。！？]+|."
)
_UNREADY = re.compile(r"(?:\[[\d ,;–-]{0,24}\]?|(?<!`)`{1,2})?\Z")
_BARE = re.compile(r"(?:yes|no)\W*", re.IGNORECASE)
_STOP = frozenset(
    _WORD.findall("""
    a about after all also an and any are as at be because been before being but by can could did do
    does for from had has have he her here his how i if in into is it its just may me more most must
    my no nor not of on one only or other our out over said shall she should so some such than that
    the their them then there these they this those to too under up upon us was we were what when
    where which while who whom whose why will with would yes you your
    answer according based context document documents passage passages provided source sources text
    """)
)

_NUMBERS = {
    word: str(n)
    for n, word in enumerate(
        _WORD.findall("two three four five six seven eight nine ten eleven twelve"), 2
    )
}
_SPELLINGS = (
    (re.compile(r"([bt])re$"), r"\1er"),  # metre, fibre
    (re.compile(r"(?<=[^\W_]{3})our(?=$|ed$|ing$|able$|ful$|less$|ite$)"), "or"),  # colour
    (re.compile(r"([iy])s(?=(?:e|ed|er|ing|ation)$)"), r"\1z"),  # organise, analyse
    (re.compile(r"ll(?=(?:ed|er|ing)$)"), "l"),  # labelled
    (re.compile(r"ence$"), "ense"),  # licence
    (re.compile(r"ogue$"), "og"),  # catalogue
)
"""British to American. A text and what it is compared with are turned alike: a word too many does no harm."""


def words_of(text: str) -> list[str]:
    """Return the content words of a text: case-folded, numbers kept whole, CJK as pairs of characters."""
    text = unicodedata.normalize("NFKC", text).casefold()
    words = [pair for run in _CJK.findall(text) for pair in _pairs(run)]
    for word in _WORD.findall(_CJK.sub(" ", text)):
        words.extend(part for part in _parts(word) if part not in _STOP)
    return words


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


def _parts(word: str) -> list[str]:
    """Keep `4,471` and `3.5` in one piece; take `state-of-the-art`, `and/or` and `800-metre` apart."""
    if word[0].isdigit():
        number, *rest = _UNIT.split(word, maxsplit=1)
        return [number.replace(",", ""), *(part for unit in rest for part in _parts(unit))]
    return [_stem(part) for part in re.split(r"[^\w]|_", word) if len(part) > 1 or part.isdigit()]


def _stem(word: str) -> str:
    """Drop an English plural or possessive s, spell as Americans do, and write small numbers in digits:
    "fees" finds "fee", "metres" finds "meter", "nine" finds "9"."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    for british, american in _SPELLINGS if len(word) > 4 else ():
        word = british.sub(american, word)
    return _NUMBERS.get(word, word)


class Attributor:
    """Says which passages a sentence comes from; knows the passages and the question."""

    def __init__(self, passages: Sequence[str], question: str) -> None:
        self._passages = [frozenset(words_of(passage)) for passage in passages]
        self._question = frozenset(words_of(question))
        self._frequency = Counter(word for words in self._passages for word in words)

    def sources_of(self, sentence: str) -> tuple[int, ...]:
        """Return the numbers (from 1) of one or two passages that hold most of the sentence, or ()."""
        words = set(words_of(sentence))
        # "Yes." and "No." have no words of their own: what they answer is the question.
        weights = {w: self._weight(w) for w in words}
        if not words and _BARE.fullmatch(sentence.strip()):
            weights = dict.fromkeys(self._question, 1.0)
        total = sum(weights.values())
        if not total or not self._passages:
            return ()
        first, gain = self._best(weights, frozenset())
        second, more = self._best(weights, self._passages[first])
        cited = (first, second) if more >= SECOND * total else (first,)
        held = gain + more if len(cited) == 2 else gain
        return tuple(sorted(i + 1 for i in cited)) if held >= ENOUGH * total else ()

    def _weight(self, word: str) -> float:
        rarity = math.log(1 + (len(self._passages) + 1) / (self._frequency[word] + 0.5))
        return rarity * (ASKED if word in self._question else 1.0)

    def _best(self, weights: dict[str, float], covered: frozenset[str]) -> tuple[int, float]:
        """Return the passage (its index) that adds most weight to what is covered; ties to the first."""
        gains = [
            sum(w for word, w in weights.items() if word in passage and word not in covered)
            for passage in self._passages
        ]
        best = max(range(len(gains)), key=lambda i: (gains[i], -i))
        return best, gains[best]


class Citer:
    """Turns the model's text into cited text, piece by piece: `feed` as it comes, `finish` at the end.

    What is fed is held back only for as long as it could still become part of a marker.
    `cited` holds the source numbers whose markers stand in the text so far; `supported` says whether a
    sentence was found in the passages by its words, whoever cited it: not whether it is true.
    """

    def __init__(self, passages: Sequence[str], question: str) -> None:
        self._attributor = Attributor(passages, question)
        self._count = len(passages)
        self._held = ""  # may still become a marker
        self._space = ""  # white space that is shown once something follows it
        self._sentence = ""
        self._begun = self._removed = self._fenced = self._model_cites = False
        self.cited: set[int] = set()
        self.supported = False

    def feed(self, delta: str) -> str:
        """Take the next piece of the model's text; return what can be shown now."""
        text = self._held + delta
        self._held = _unready(text)
        return self._take(text[: len(text) - len(self._held)])

    def finish(self) -> str:
        """Return the rest, with the marker of the last sentence; trailing white space is dropped."""
        rest, self._held = self._held, ""
        return self._take(rest) + self._close()

    def _take(self, text: str) -> str:
        return "".join(self._token(found) for found in _TOKEN.finditer(text))

    def _token(self, found: re.Match[str]) -> str:
        token, kind = found[0], found.lastgroup
        if kind == "space":
            self._space = token if self._removed else self._space + token
            return ""
        if kind == "marker" and not self._fenced:
            return self._marker(token)
        shown = self._text(token)
        if kind == "fence":
            self._fenced, self._sentence = not self._fenced, ""
        return shown

    def _text(self, token: str) -> str:
        """Show a token, and the white space before it; where a sentence ended there, its marker first."""
        closing = self._close() if self._is_over(token) else ""
        space = "" if not self._begun or (self._removed and token[0] in ".,;:!?)") else self._space
        self._sentence += space + token
        self._space, self._begun, self._removed = "", True, False
        return closing + space + token

    def _is_over(self, following: str) -> bool:
        if self._fenced or not self._sentence:
            return False
        if "\n" in self._space:
            return True
        if self._sentence[-1] in "。！？":
            return following[0] not in "」』”’）"
        ended = self._sentence.rstrip("\"'”’)]*_").endswith((".", "!", "?"))
        # "Dr.", "e.g.", "No." end no sentence: what is that short goes with what follows.
        return ended and self._space != "" and len(words_of(self._sentence)) > 2

    def _close(self) -> str:
        """End the sentence: return our marker for it, unless the model cites by itself."""
        sentence, self._sentence = self._sentence.strip(), ""
        if self._fenced or sentence.startswith("#") or sentence.endswith(":"):
            return ""
        if not any(character.isalnum() for character in sentence):
            return ""
        numbers = self._attributor.sources_of(sentence)
        self.supported |= bool(numbers)
        if self._model_cites:
            return ""
        self.cited.update(numbers)
        return " " + "".join(f"[{n}]" for n in numbers) if numbers else ""

    def _marker(self, marker: str) -> str:
        """Keep the valid numbers of a marker of the model; drop a marker that points to no source."""
        numbers = list(dict.fromkeys(_numbers(marker)))
        valid = [n for n in numbers if 1 <= n <= self._count]
        before = "" if self._space else self._sentence[-1:]
        coded = before == "_" or self._sentence.count("`") % 2 == 1
        if coded or (0 in numbers and before.isalnum()):  # an index, such as items[0]
            return self._text(marker)
        if not valid:
            self._removed = True
            return ""
        self._model_cites = True
        self.cited.update(valid)
        shown = marker if valid == numbers else f"[{', '.join(map(str, valid))}]"
        space, self._space, self._begun = self._space if self._begun else "", "", True
        return space + shown


def _unready(text: str) -> str:
    """Return the tail that may still change: half a marker, one that a "(" may follow, a half fence."""
    return _UNREADY.search(text)[0]  # type: ignore[index]  # it matches "" at the end


def _numbers(marker: str) -> list[int]:
    numbers: list[int] = []
    for part in re.split(r"[,;]", marker.strip("[] ")):
        first, *last = re.split(r"[–-]", part)
        numbers.extend(range(int(first), int(last[-1] if last else first) + 1))
    return numbers
