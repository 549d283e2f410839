"""What a file says of itself: properties to `meta`, and titles that are none told from those that are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from epicrag.connectors.dates import dated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epicrag.types import MetaValue

_NO_TITLE = re.compile(
    r"\.(?:docx?|docm|dotx?|xlsx?|xlsm|pptx?|pdf|odt|ods|odp|rtf|txt|html?)\b|^microsoft |^slide ?\d*$"
    r"|^untitled|^(?:power ?point|word)?[ -]?(?:presentation|document|workbook)?\d*$|^sheet ?\d+$|^title$"
    r"|^(?:präsentation|présentation|dokument|presentación)\d*$|^[\w.-]*_[\w.-]*$",
    re.IGNORECASE,
)
_MAX_TITLE_CHARS = 200
_NO_AUTHOR = frozenset({"", "python-docx", "openpyxl", "user", "administrator", "unknown"})


def real_title(title: str | None) -> str | None:
    """A title found in properties, if it is one: not a file's name, nor what programs put there."""
    title = " ".join((title or "").split())
    if not title or len(title) > _MAX_TITLE_CHARS or _NO_TITLE.search(title):
        return None
    return title


def metadata(values: Mapping[str, str | None]) -> dict[str, MetaValue]:
    """Return `meta` of texts as they stand in properties: empty ones left out, the date with its year.

    `values` may hold title, author, date, subject, keywords (which are tags), and any other name.
    """
    meta: dict[str, MetaValue] = {}
    for name, value in values.items():
        text = " ".join((value or "").split())
        if not text or (name == "author" and text.lower() in _NO_AUTHOR):
            continue
        if name == "date":
            meta |= dated(text)
        elif name == "keywords":
            words = tuple(word.strip() for word in re.split("[,;]", text) if word.strip())
            meta |= {"tags": words} if words else {}
        else:
            meta[name] = text[:500]
    return meta
