"""What documents say of themselves, under one set of names: title, author, date, year, tags, language."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from epicrag.connectors import dates

if TYPE_CHECKING:
    from epicrag.types import MetaValue

_NAMES = {
    "authors": "author", "creator": "author", "created": "date", "published": "date", "pubdate": "date",
    "published_time": "date", "publishdate": "date", "keywords": "tags", "tag": "tags",
    "categories": "tags", "category": "tags", "filetags": "tags", "lang": "language",
    "locale": "language", "summary": "description", "revdate": "date",
}  # fmt: skip
_MANY = frozenset({"tags", "author"})
_ISO = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?(?!\d)")
_DAY_FIRST = re.compile(r"(\d{1,2})\.?\s+([A-Za-z]{3,9})\.?,?\s+(\d{4})")
_MONTH_FIRST = re.compile(r"([A-Za-z]{3,9})\.?\s+(\d{1,2})(?:st|nd|rd|th)?,?\s+(\d{4})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MAX_KEYS = 40
_MAX_CHARS = 500


def meta_of(found: Mapping[str, object]) -> dict[str, MetaValue]:
    """Return what was found under the names that all formats share; what says nothing is left out.

    A date that can be read is ISO ("2024-05-01", "2024-05", "2024"), and gives `year` as a number.
    """
    meta: dict[str, MetaValue] = {}
    for key, value in list(found.items())[:_MAX_KEYS]:
        name = _name(str(key))
        cleaned = _value(name, value)
        if name and cleaned is not None and name not in meta:
            meta[name] = cleaned
    day = iso_date(str(meta.get("date", "")))
    if day:
        meta["date"] = day
        meta.setdefault("year", int(day[:4]))
    return meta


def iso_date(text: str) -> str | None:
    """Return a date as ISO, as exact as it was written; None when it is none that is understood."""
    text = text.strip().strip("<>[]")
    if found := _ISO.match(text):
        return _joined(int(found[1]), int(found[2] or 0), int(found[3] or 0))
    if found := _DAY_FIRST.search(text):
        return _joined(int(found[3]), _month(found[2]), int(found[1]))
    if found := _MONTH_FIRST.search(text):
        return _joined(int(found[3]), _month(found[1]), int(found[2]))
    return dates.iso_date(text)


def _joined(year: int, month: int, day: int) -> str | None:
    try:
        datetime.date(year, month or 1, day or 1)
    except ValueError:
        return None
    if not month:
        return f"{year:04d}"
    return f"{year:04d}-{month:02d}-{day:02d}" if day else f"{year:04d}-{month:02d}"


def _month(word: str) -> int:
    start = word[:3].lower()
    return _MONTHS.index(start) + 1 if start in _MONTHS else 13


def _name(key: str) -> str:
    name = re.sub(r"\W+", "_", key.strip().lower()).strip("_")
    return _NAMES.get(name, name)


def _value(name: str, value: object) -> MetaValue | None:
    """Return a value in a form that filters understand; None when there is nothing in it."""
    if isinstance(value, datetime.date):  # datetimes are dates, too
        return value.isoformat()[:10]
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, float) or abs(value) < 1e300 else None
    if isinstance(value, list | tuple):
        texts = tuple(text for item in value if (text := _text(item)))
        return texts[:100] or None
    text = _text(value)
    if text and name in _MANY and re.search("[,;]", text):
        return tuple(part for one in re.split(r"\s*[,;]\s*", text) if (part := one.strip()))
    return text or None


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get("name", "")
    if not isinstance(value, str | int | float | datetime.date):
        return ""
    return " ".join(str(value).split())[:_MAX_CHARS]
