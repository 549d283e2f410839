"""Dates as documents write them, told alike: for what is said of a document, so that it can be filtered."""

from __future__ import annotations

import re
from datetime import date
from email.utils import parsedate_tz

_ISO = re.compile(r"\s*(\d{4})(?:-?(\d{2})(?:-?(\d{2}))?)?(?!\d)")


def iso_date(text: str) -> str | None:
    """Return a date of ISO 8601 or of mail as YYYY-MM-DD, YYYY-MM or YYYY; None when it is neither."""
    if iso := _ISO.match(text):
        year, month, day = (int(part) if part else None for part in iso.groups())
    else:
        try:
            parts = parsedate_tz(text)
        except (ValueError, IndexError, TypeError):  # what the library makes of nonsense varies
            return None
        if parts is None:
            return None
        year, month, day = parts[:3]
    return _checked(year, month, day)


def dated(text: str | None) -> dict[str, str | int]:
    """Return `date` and `year` as a document's meta has them; nothing when there is no date."""
    found = iso_date(text) if text else None
    return {} if found is None else {"date": found, "year": int(found[:4])}


def _checked(year: int | None, month: int | None, day: int | None) -> str | None:
    try:
        date(year or 0, month or 1, day or 1)
    except ValueError:
        return None
    return "-".join(
        f"{part:02}" if at else f"{part:04}" for at, part in enumerate((year, month, day)) if part
    )
