"""Text to the words it is found by: the same for passages and for questions.

SQLite's own tokenizers know neither where a Chinese word ends nor that `url_for`, `urlFor` and `URL-for` are
one name, and differ between versions of SQLite. So words are made here, and FTS5 only cuts at spaces.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

LONGEST = 64
"""Characters of a word: what is longer is no word, and is cut so that the index stays small."""
_MOST_PIECES = 6  # of a name that is also indexed as a whole: longer ones are paths
_GLUE = "·"  # no token separator to FTS5, and in no word
_POSSESSIVE = frozenset({"s", "t", "re", "ve", "ll", "d", "m"})

_STOP_WORDS = """
    a about above after again against all am an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from further
    had has have having he her here hers him his how i if in into is it its itself just me more
    most my no nor not of off on once only or other our ours out over own same she should so
    some such than that the their theirs them then there these they this those through to too
    under until up very was we were what when where which while who whom why will with would you
    your yours
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English words that say nothing of a subject. In other languages the index itself shows which are common."""
_ACRONYMS = frozenset({"am", "as", "be", "can", "do", "he", "if", "it", "its", "me", "who"})
"""Those of them that are names in capitals, among words that are not: the WHO, an IT department."""

# One run of text without a space that may be a name: pieces of letters and digits, and what joins them.
_NAME = r"""[\p{L}\p{N}\p{M}]+(?:(?:[_.\-/@:+'’,&·#]|\(|\[|\)\.?|\]\.?|::|->|\.\.)[\p{L}\p{N}\p{M}]+)*"""
# Pictures that stand for a word: from the blocks of symbols on, without signs such as (c); flags are two letters.
_EMOJI = r"(?P<emoji>\p{RI}{2}|(?![\u0000-\u25ff])\p{Extended_Pictographic})\ufe0f?"
# Written without spaces between words, or with particles grown onto them (Hangul).
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Hangul}\p{Bopomofo}ー々〆]"
_PARTS = (
    rf"(?P<unspaced>(?:{_UNSPACED}\p{{M}}*)+)|(?P<word>(?:(?!{_UNSPACED})[\p{{L}}\p{{N}}\p{{M}}])+)"
)
_CAMEL = r"\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?[\p{Ll}\p{Lo}\p{M}]+|\p{Lu}+|\p{N}+"

_THOUSANDS = r"(?<=\d),(?=\d{3}(?!\d))"  # 1,000 is 1000

# Marks that are left out in writing as often as not: accents, Hebrew points, Arabic vowels; and what is
# never seen: soft hyphens, joiners, the Arabic stretcher.
_MARKS = r"[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u00ad\u200c\u200d\u2060\ufeff\u0640]"


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded and stemmed, in order; names as a whole and in their parts.

    What is written without spaces comes in overlapping pairs of characters and in single characters.
    """
    return list(_words(text, is_query=False))


def query_words(text: str) -> list[str]:
    """Return the words to look for, each once, in order.

    Of what is written without spaces: the pairs, and a single character only where it stands alone.
    """
    return list(dict.fromkeys(_words(text, is_query=True)))


def joined(text: str | None) -> str:
    """Return the words of a text, ready for FTS5."""
    return " ".join(words_of(text)) if text else ""


def _words(text: str, *, is_query: bool) -> Iterator[str]:
    text = _pattern(_THOUSANDS).sub("", unicodedata.normalize("NFKC", text))
    before = ""
    for found in _pattern(f"{_EMOJI}|{_NAME}").finditer(text):
        name = found.group()
        if found["emoji"]:
            yield found["emoji"]
        elif name.isupper() and name.lower() in _ACRONYMS:
            if not (_is_loud(before) or _is_loud(_next(text, found.end()))):
                yield name.lower() + _GLUE  # a word of its own: "who" is none
        elif name.isascii() and name.isalpha() and (name.islower() or name.istitle()):
            yield from _plain(name.lower())
        else:
            yield from _of_name(name, is_query)
        before = name


def _next(text: str, at: int) -> str:
    """The name after a place in a text; "" where a sentence ends before it."""
    found = _pattern(rf"[ \t]*({_NAME})").match(text, at)
    return str(found[1]) if found else ""


def _is_loud(name: str) -> bool:
    """Whether a stop word in capitals: next to another one, neither is a name."""
    return len(name) > 1 and name.isupper() and name.lower() in STOP_WORDS


def _plain(word: str) -> Iterator[str]:
    if word and word not in STOP_WORDS:
        yield _stem(word[:LONGEST])


def _of_name(name: str, is_query: bool) -> Iterator[str]:
    """Yield the parts of a name, and the name as a whole where it has several."""
    pieces = _pattern(r"[\p{L}\p{N}\p{M}]+").findall(name)
    if len(pieces) > 1 and ("'" in name or "’" in name):
        pieces = _without_apostrophes(pieces)
    is_acronym = len(pieces) > 1 and all(len(piece) == 1 and piece.isalpha() for piece in pieces)
    whole_is_new = 1 < len(pieces) <= _MOST_PIECES
    for piece in [] if is_acronym else pieces:
        yield from _of_piece(piece, is_query)
    if whole_is_new and not _pattern(_UNSPACED).search(name):
        yield from _plain(_folded(_whole(name, pieces)))


def _of_piece(piece: str, is_query: bool) -> Iterator[str]:
    for part in _pattern(_PARTS).finditer(piece):
        if part["unspaced"]:
            yield from _characters(_folded(part["unspaced"]), is_query)
        else:
            yield from _of_word(part["word"])


def _of_word(word: str) -> Iterator[str]:
    """Yield a word, and its parts where capitals or digits show them."""
    folded = _folded(word)
    yield from _plain(folded)
    parts = _pattern(_CAMEL).findall(word) if not (word.isalpha() and _is_of_one_case(word)) else []
    if 1 < len(parts) <= _MOST_PIECES:
        for part in parts:
            if len(part) > 1 or part.isdigit():
                yield from _plain(_folded(part))


def _is_of_one_case(word: str) -> bool:
    return word.islower() or word.isupper() or word.istitle() or word.lower() == word.upper()


def _characters(run: str, is_query: bool) -> Iterator[str]:
    """Yield the overlapping pairs of a run, and its single characters."""
    units = _pattern(r"\P{M}\p{M}*|\p{M}+").findall(run)
    if not is_query or len(units) == 1:
        yield from units
    for first, second in itertools.pairwise(units):
        yield first + second


def _whole(name: str, pieces: list[str]) -> str:
    """Join the pieces: 1.2.3 and 2020-01-02 keep their joints, or 1.2 would be 12."""
    whole = pieces[0].lstrip("vV") if pieces[0][1:].isdigit() else pieces[0]
    at = name.find(pieces[0]) + len(pieces[0])
    for before, piece in itertools.pairwise(pieces):
        start = name.find(piece, at)
        joint = name[at:start]
        is_number = before[-1].isdigit() and piece[0].isdigit() and joint in (".", "-", ":", "/")
        whole += (_GLUE if is_number else "") + piece
        at = start + len(piece)
    return whole


def _without_apostrophes(pieces: list[str]) -> list[str]:
    """Leave out what an apostrophe cut off: the s of "Scott's", the l of "l'eau"."""
    if pieces[-1].lower() in _POSSESSIVE:
        pieces = pieces[:-1]
    return pieces[1:] if len(pieces) > 1 and len(pieces[0]) == 1 else pieces


@lru_cache(maxsize=1 << 16)
def _folded(word: str) -> str:
    bare = _pattern(_MARKS).sub("", unicodedata.normalize("NFKD", word.casefold()))
    return unicodedata.normalize("NFC", bare)


@lru_cache(maxsize=1 << 17)
def _stem(word: str) -> str:
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    return str(_stemmer().stemWord(word))


@cache
def _stemmer() -> Any:
    from snowballstemmer.english_stemmer import EnglishStemmer

    return EnglishStemmer()


@cache
def _pattern(pattern: str) -> Any:
    import regex

    return regex.compile(pattern)
