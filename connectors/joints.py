"""Where prose may be cut: after sentences, lines and words, never inside a character."""

from __future__ import annotations

import re
import unicodedata

_SENTENCE = re.compile(
    "(?:[.!?…‼⁇]+[\"'”’»)\\]]*(?=\\s)"  # a space must follow: 3.5 and a.b are no ends
    "|[。！？｡．؟۔।॥።][\"'”’」』）)\\]]*)"  # these end a sentence whatever follows
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|Fig|Figs|Eq|No|Nos|Vol|pp?|ca|approx|Inc|Ltd))\.$"
)
_ITEM = re.compile(r"\n(?=[ \t]*(?:[-*+•–]|\d{1,3}[.)])[ \t])")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_MAX_CLUSTER = 16
_MAX_SPACE = 200
_MAX_FLAGS = 4096
_SPACES = " \n\t\u3000\u2003\u2002\u2009"
_JOINER = "\u200d"


def sentences(text: str, least: int, most: int) -> int | None:
    """Return the end of the last sentence, or of the last line before a list item, within the bounds."""
    cuts = [_blank_line(text, least, most), _item(text, least, most), _sentence(text, least, most)]
    found = [cut for cut in cuts if cut is not None]
    return max(found) if found else None


def code_lines(text: str, least: int, most: int) -> int | None:
    """Return the end of the last blank line within the bounds, else of the last line."""
    return _blank_line(text, least, most) or lines(text, least, most)


def lines(text: str, least: int, most: int) -> int | None:
    """Return the place after the last line end within the bounds."""
    at = text.rfind("\n", least - 1, most)
    return at + 1 if at >= 0 else None


def words(text: str, least: int, most: int) -> int | None:
    """Return the place after the last white space within the bounds."""
    last = max(text.rfind(space, max(least - 1, 0), most) for space in _SPACES)
    return last + 1 if last >= 0 else None


def snug(text: str, cut: int) -> int:
    """Move a cut behind the white space that follows it: a chunk begins with something to read."""
    end = cut
    while end < len(text) and end - cut < _MAX_SPACE and text[end].isspace():
        end += 1
    # A line begins with its indentation: in code that is part of it.
    line_start = text.rfind("\n", max(cut - 1, 0), end) + 1
    return max(line_start, cut) if line_start > 0 and end < len(text) else end


def whole_character(text: str, at: int, floor: int | None = None) -> int:
    """Return the edge of a character as a reader sees one: with its accents, joiners and modifiers.

    Without a floor: the end of the character that begins at `at`. With one: the last edge at or before
    `at`, not before `floor`. What is longer than 16 code points is cut between code points.
    """
    if floor is None:
        end = at + 1
        while end < len(text) and end - at < _MAX_CLUSTER and not _is_edge(text, end):
            end += 1
        return min(end, len(text))
    edge = at
    while floor < edge < len(text) and at - edge < _MAX_CLUSTER and not _is_edge(text, edge):
        edge -= 1
    return edge if edge == floor or edge >= len(text) or _is_edge(text, edge) else at


def _is_edge(text: str, at: int) -> bool:
    """May the text be cut before `text[at]`?"""
    before, after = text[at - 1], text[at]
    if after < "\u0300":
        return not (before == "\r" and after == "\n")
    if before == _JOINER and after > "\u2000":
        return False
    if _extends(after):
        return False
    if _is_flag(before) and _is_flag(after):
        return _flags_before(text, at) % 2 == 0
    return not ("\u1100" <= before <= "\u11ff" and "\u1160" <= after <= "\u11ff")


def _extends(character: str) -> bool:
    """Does it belong to the character before it?"""
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me")
        or character in ("\u200c", _JOINER)
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # tags, in flags of regions
    )


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flags_before(text: str, at: int) -> int:
    count = 0
    while count < at and count < _MAX_FLAGS and _is_flag(text[at - count - 1]):
        count += 1
    return count


def _sentence(text: str, least: int, most: int) -> int | None:
    """Return the end of the last sentence that ends in `[least, most]`."""
    last = None
    for found in _SENTENCE.finditer(text, max(least - 8, 0), min(most + 1, len(text))):
        if least <= found.end() <= most and not _is_abbreviation(text, found.end()):
            last = found.end()
    return last


def _is_abbreviation(text: str, end: int) -> bool:
    return text[end - 1] == "." and _ABBREVIATION.search(text[max(end - 8, 0) : end]) is not None


def _item(text: str, least: int, most: int) -> int | None:
    ends = [found.end() for found in _ITEM.finditer(text, least - 1, most)]
    return ends[-1] if ends else None


def _blank_line(text: str, least: int, most: int) -> int | None:
    ends = [found.end() for found in _BLANK_LINE.finditer(text, least - 1, most)]
    return ends[-1] if ends else None
