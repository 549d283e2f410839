"""In which code page were these bytes written? The one in which they read most like a text.

Each candidate's reading is given a likelihood: letters by how often a language uses them, signs by how
often anyone does. What a writer does not do costs extra: two scripts in one word, a capital after a small
letter, a sign between letters. Nothing is learnt from the machine, its locale or its other files.
"""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from collections import Counter
from functools import cache
from typing import NamedTuple

PAGES: dict[str, float] = {
    "cp1252": 0.0,
    "gb18030": -1.0,
    "cp932": -1.0,
    "cp1251": -1.0,
    "big5": -1.5,
    "euc_jp": -1.5,
    "cp949": -1.5,
    "koi8_r": -1.5,
    "cp1250": -1.5,
    "cp1254": -1.5,
    "cp1253": -1.5,
    "cp1255": -1.5,
    "cp1256": -1.5,
    "cp874": -1.5,
    "cp866": -2.0,
    "cp1257": -2.0,
    "cp1258": -2.0,
    "koi8_u": -2.5,
    "iso8859_2": -2.5,
    "iso8859_7": -2.5,
    "iso8859_6": -2.5,
    "iso8859_15": -2.5,
    "cp850": -3.0,
    "iso8859_5": -3.0,
    "cp437": -3.5,
    "cp852": -3.5,
    "mac_roman": -3.5,
    "mac_cyrillic": -5.0,
}
"""The code pages that files are really written in, and how much less likely each is than the first (log)."""
EBCDIC: dict[str, float] = {"cp500": -1.0, "cp037": -1.2, "cp273": -3.0, "cp1026": -4.0}
WIDE: dict[str, float] = {"utf-16-le": -1.0, "utf-16-be": -1.0}

_LETTER = -3.0  # an ASCII letter, a space, a digit, a sign: what each costs in all code pages
_SPACE = -2.0
_DIGIT = -3.7
_SIGN = -4.5
_CONTROL = -14.0
_BROKEN = -12.0
_STRANGE = -12.0  # a letter or sign that hardly anyone uses
_FOREIGN = -10.0  # a letter of the language's script that the language does not have
_BORROWED = -7.5  # a letter that stands in names of Western Europe, whatever the language
_LONELY = -5.0
_USUAL_SIGN = -5.0
_CAPITAL = -1.6
_WRONG_CASE = -3.0
_MIXED = -5.0
_INSIDE = -4.0
_FIRST_LOOK = 500
_LOOKED_AT_AGAIN = 10
"""So many bytes tell which pages can still be right; only those are looked at in full."""
_MAX_ASCII = 100
"""So many ASCII letters have a say in which Latin language it is: an English preface must not decide."""

_USUAL = frozenset(
    "\u00a0–—‘’“”„…«»°§€£©®·•№±×÷½²³¡¿™†´ºª、。，！？「」：；（）《》『』・〜～،؛؟।‚‹›"
)
_WESTERN = "áéíóöüñçàèâêôåäøæœïëúîûãõ"
_LONE_LETTER = re.compile(
    "(?<![\\w\u0e00-\u0e7f])[^\\W\\d_\x00-\x7fàèéêóáôúíìòоОиИвВсСкКуУаАяЯіІйїєοηόήΟΗ\u3000-\uffff](?![\\w\u0e00-\u0e7f])"
)
_BRACKET_INSIDE = re.compile(r"(?<=[A-Za-z])[\[\]{}|\\^~](?=[a-z])|\b[\[\]{}|\\^~](?=[a-z])")
_SIGN_INSIDE = re.compile(
    "(?<=[^\\W\\d_])[^\\w\\s\x00-\x7f’‘´·\u0300-\u036f\u0591-\u06ff\u0900-\u0e7f\u3000-\u9fff\uff00-\uffef]+(?=[^\\W\\d_])"
)
_RUNS = re.compile("([^\\w\\s\ufffd])\\1{2,}")


class Guess(NamedTuple):
    """A code page, and how much likelier it is than the next best reading that differs (log)."""

    encoding: str
    text: str
    score: float


def best_guess(sample: bytes, pages: dict[str, float], *, whole: bool = True) -> Guess:
    """Return the page of `pages` in which the sample reads best. The text is the sample's, in it.

    Where the sample is not the `whole` of the bytes, its end may cut a character in half.
    """
    if len(sample) > 2 * _FIRST_LOOK:
        pages = _possible(sample[:_FIRST_LOOK], pages)
    readings: dict[str, Guess] = {}
    for page, prior in pages.items():
        text = _decoded(sample, page, whole)
        if text not in readings:  # in two pages the same: the likelier one's
            readings[text] = Guess(page, text, prior + likelihood(text))
    return max(readings.values(), key=lambda guess: guess.score)


def _possible(beginning: bytes, pages: dict[str, float]) -> dict[str, float]:
    """The pages that can still be right after a look at the first bytes."""
    texts = {page: _decoded(beginning, page, whole=False) for page in pages}
    scores = {text: likelihood(text) for text in set(texts.values())}
    ranked = sorted(pages, key=lambda page: -(scores[texts[page]] + pages[page]))
    least = scores[texts[ranked[:_LOOKED_AT_AGAIN][-1]]]
    return {page: pages[page] for page in pages if scores[texts[page]] >= least}


def _decoded(sample: bytes, page: str, whole: bool) -> str:
    return codecs.getincrementaldecoder(page)("replace").decode(sample, final=whole)


def likelihood(text: str) -> float:
    """The log of how likely a text is, up to what all readings of the same bytes share."""
    text = _RUNS.sub(r"\1", text)
    counts = Counter(text)
    ascii_letters: Counter[str] = Counter()
    total = 0.0
    others: Counter[str] = Counter()
    for character, count in counts.items():
        if character < "\x80":
            total += count * _ascii_cost(character)
            if character.isalpha():
                ascii_letters[character.lower()] += count
        else:
            others[character] += count
    return total + _others(others, ascii_letters) + _habits(text)


def _ascii_cost(character: str) -> float:
    if character.isalpha():
        return _LETTER
    if character in " \n\r\t":
        return _SPACE
    if character.isdigit():
        return _DIGIT
    return _SIGN if character.isprintable() else _CONTROL


def _others(others: Counter[str], ascii_letters: Counter[str]) -> float:
    """What the characters above ASCII cost in the language that they fit best."""
    letters: Counter[str] = Counter()
    total = 0.0
    for character, count in others.items():
        kind = unicodedata.category(character)
        if character == "\ufffd":
            total += count * _BROKEN
        elif character in _USUAL:
            total += count * _USUAL_SIGN
        elif kind[0] in "LM":
            small = character.lower() if len(character.lower()) == 1 else character
            letters[small] += count
            total += count * _CAPITAL if kind == "Lu" else 0.0
        elif kind in ("Cc", "Co", "Cn", "Cs"):
            total += count * _CONTROL
        else:
            total += count * _STRANGE
    return total + _language(letters, ascii_letters)


def _language(letters: Counter[str], ascii_letters: Counter[str]) -> float:
    """The likelihood of letters: each script's in the language of that script that fits it best."""
    scripts: dict[str, Counter[str]] = {}
    for letter, count in letters.items():
        scripts.setdefault(_script(letter), Counter())[letter] += count
    total = 0.0
    for script, its in scripts.items():
        if script == "latin":
            total += _latin(its, ascii_letters)
        else:
            tables = _tables().get(script, ())
            total += max((_in(table, its) for table in tables), default=_STRANGE * its.total())
    return total


def _latin(letters: Counter[str], ascii_letters: Counter[str]) -> float:
    """As `_in`, with a say for the ASCII letters around."""
    tables = _tables()["latin"]
    n_ascii = ascii_letters.total()
    share = min(n_ascii, _MAX_ASCII) / n_ascii if n_ascii else 0.0
    around = [share * _in(table, ascii_letters) for table in tables]
    highest = max(around)
    return max(
        _in(table, letters) + near - highest for table, near in zip(tables, around, strict=True)
    )


def _in(table: dict[str, float], letters: Counter[str]) -> float:
    return sum(count * table.get(letter, _FOREIGN) for letter, count in letters.items())


def _habits(text: str) -> float:
    """What writers do not do: scripts mixed within a word, capitals behind small letters, signs inside words."""
    n_inside = len(_SIGN_INSIDE.findall(text)) + len(_BRACKET_INSIDE.findall(text))
    total = _INSIDE * n_inside + _LONELY * len(_LONE_LETTER.findall(text))
    for pair in _adjacent(text):
        before, after = pair[0], pair[1]
        first, second = _script(before), _script(after)
        if first != second and not {first, second} <= _TOGETHER:
            total += _MIXED
        elif before.islower() and after.isupper():
            total += _WRONG_CASE
    return total


_ADJACENT = re.compile("(?=([^\\W\\d_](?:[^\\W\\d_])))")
_TOGETHER = frozenset({"han", "kana", "hangul"})


def _adjacent(text: str) -> list[str]:
    """Pairs of letters side by side, at least one of them above ASCII."""
    return [pair for pair in _ADJACENT.findall(text) if not pair.isascii()]


@cache
def _script(letter: str) -> str:
    """The script of a letter, by a few ranges: enough to tell code pages apart."""
    code = ord(letter)
    if code < 0x250 or 0x1E00 <= code < 0x1F00 or 0x300 <= code < 0x370:
        return "latin"
    for script, ranges in _RANGES.items():
        if any(first <= code <= last for first, last in ranges):
            return script
    return "other"


_RANGES = {
    "greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "cyrillic": ((0x400, 0x52F),),
    "hebrew": ((0x590, 0x5FF),),
    "arabic": ((0x600, 0x6FF), (0x750, 0x77F)),
    "devanagari": ((0x900, 0x97F),),
    "thai": ((0xE00, 0xE7F),),
    "kana": ((0x3040, 0x30FF),),
    "han": ((0x4E00, 0x9FFF), (0x3005, 0x3007)),
    "hangul": ((0xAC00, 0xD7A3),),
}


@cache
def _tables() -> dict[str, tuple[dict[str, float], ...]]:
    """For each script, the log-likelihood of letters in each of its languages."""
    from epicrag.connectors import letters

    tables: dict[str, list[dict[str, float]]] = {}
    borrowed = dict.fromkeys(_WESTERN, _BORROWED)
    for alphabet in letters.LATIN.values():
        tables.setdefault("latin", []).append(borrowed | _by_rank(alphabet, 0.1, 1.0))
    for alphabet in letters.OTHER.values():
        share = 0.6 if alphabet[0] == "の" else 0.95  # Japanese has characters, too
        tables.setdefault(_script(alphabet[0]), []).append(_by_rank(alphabet, 0.08, share))
    han = [
        _zipf(letters.SIMPLIFIED, 0.6),
        _zipf(letters.TRADITIONAL, 0.6),
        _zipf(letters.KANJI, 0.25),
    ]
    tables["han"] = [
        _Levels(common, encoding, share)
        for common, encoding, share in zip(
            han, ("gb2312", "big5", "euc_jp"), (0.35, 0.35, 0.15), strict=True
        )
    ]
    tables["hangul"] = [_Levels(_zipf(letters.SYLLABLES, 0.8), "euc_kr", 0.2)]
    return {script: tuple(found) for script, found in tables.items()}


def _by_rank(alphabet: str, decay: float, share: float) -> dict[str, float]:
    weights = [math.exp(-decay * rank) for rank in range(len(alphabet))]
    total = sum(weights)
    found: dict[str, float] = {}
    for letter, weight in zip(alphabet, weights, strict=True):
        found.setdefault(letter, math.log(share * weight / total))
    return found


def _zipf(common: str, share: float) -> dict[str, float]:
    ranked = list(dict.fromkeys(common))
    total = sum(1 / (rank + 10) for rank in range(len(ranked)))
    return {letter: math.log(share / (rank + 10) / total) for rank, letter in enumerate(ranked)}


class _Levels(dict[str, float]):
    """Characters of the Far East: the commonest by rank, the others by the level their standard puts them in."""

    def __init__(self, common: dict[str, float], encoding: str, share: float) -> None:
        super().__init__(common)
        self._encoding = encoding
        self._first = math.log(share / 3_000)
        self._second = math.log(share / 300_000)

    def get(self, letter: str, default: float = _STRANGE) -> float:  # type: ignore[override]
        if (found := super().get(letter)) is not None:
            return found
        self[letter] = found = self._by_level(letter)
        return found

    def _by_level(self, letter: str) -> float:
        try:
            row = letter.encode(self._encoding)[0]
        except UnicodeEncodeError:
            return _CONTROL
        last = {"gb2312": 0xD7, "big5": 0xC6, "euc_jp": 0xCF, "euc_kr": 0xC8}[self._encoding]
        return self._first if row <= last else self._second
