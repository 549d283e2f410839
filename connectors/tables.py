"""What a table's first rows are: its head, or rows as any other."""

from __future__ import annotations

import re
from collections.abc import Sequence

from epicrag.connectors.rows import one_line

_NUMBER = re.compile(r"[-+(]?[\s$€£¥]*[\d.,' \u00a0\u202f]*\d[\d.,' \u00a0\u202f]*[\s%)€$£¥]*")
_YEAR = re.compile(r"(?:19|20)\d\d")
_MAX_NAME_CHARS = 120


def is_number(text: str) -> bool:
    """Is a cell's text a number, an amount or a percentage?"""
    return bool(_NUMBER.fullmatch(text.strip())) if text.strip() else False


def is_head(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Does the first row name the columns?

    It has a name for every column that the rows below fill, or all but the first; none is a number, but for
    years; and none is as long as a sentence.
    """
    if not below or sum(bool(text.strip()) for text in first) < 2:
        return False
    width = max((at + 1 for row in below for at, text in enumerate(row) if text.strip()), default=0)
    names = [one_line(text) for text in first]
    if len({name for name in names if name}) < 2:  # a caption over the whole width
        return False
    missing = [at for at, name in enumerate(names[1:width], 1) if not name]
    if missing or len(names) < width:
        return False
    if any(is_number(name) and not _YEAR.fullmatch(name) for name in names):
        return False
    return all(len(name) <= _MAX_NAME_CHARS for name in names)


def joined_head(rows: Sequence[Sequence[str]]) -> list[str]:
    """Several head rows as one: of each column, the names above each other, each once."""
    names: list[list[str]] = [[] for _ in range(max(map(len, rows), default=0))]
    for row in rows:
        for at, text in enumerate(row):
            name = one_line(text)
            if name and name not in names[at]:
                names[at].append(name)
    return [" ".join(column) for column in names]
