"""Ignore rules that take no longer than the names they are held against, whatever they were made for."""

from __future__ import annotations

import re

_STAR = "[^/]*"
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_ANY_FOLDERS = re.compile(r"\(\?:/?\.[*+]/?\)\?")
_MOST_LOOSE = 3
MAX_RULE_CHARS = 1_000


def bounded(regex: str) -> str | None:
    """Return the regular expression of a rule so that it cannot run away; None where that cannot be.

    What stands between two stars is best found where it comes first: none of the tries that follow could
    succeed where that fails. `**` has no such shape, and a few of them are enough for any rule.
    """
    first, *pieces = regex.split(_STAR)
    parts, loose = [first], len(_ANY_FOLDERS.findall(regex))
    for number, piece in enumerate(pieces, 1):
        is_last = number == len(pieces)
        if is_last or "(" in _ESCAPED.sub("", piece):  # its end may be found in more than one place
            parts.append(_STAR + piece)
            loose += not is_last
        else:
            parts.append(f"(?>{_STAR}?{piece})")
    return "".join(parts) if loose <= _MOST_LOOSE else None
