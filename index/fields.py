"""What filters may ask of a passage: its document's path, kind and metadata, and its own place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from epicrag.types import MetaValue

Value = str | int | float | bool
_MOST_BITS = 1000  # a float holds numbers of 1,023 bits

CHUNK_FIELDS = frozenset({"page", "heading", "part"})
DOCUMENT_FIELDS = frozenset({"path", "name", "ext", "media", "title"})
FIELDS = CHUNK_FIELDS | DOCUMENT_FIELDS
"""What every index has; documents bring others with their metadata."""
ALIASES = {
    "file": "name",
    "filename": "name",
    "file_name": "name",
    "file_path": "path",
    "extension": "ext",
    "type": "media",
    "headings": "heading",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one document, and of one chunk of it where chunks are asked for."""

    path: str
    media: str
    title: str | None
    meta: Mapping[str, MetaValue]
    page: int | None = None
    heading: str | None = None
    part: str | None = None
    is_document: bool = False
    """Of a document only: page, heading and part are not known, and not missing."""

    def get(self, field: str) -> tuple[Value, ...]:
        """Return the values of a field; none when it is missing."""
        match field:
            case "path":
                return (self.path,)
            case "name":
                return (PurePosixPath(self.path).name,)
            case "ext":
                return (PurePosixPath(self.path).suffix.removeprefix(".").lower(),)
            case "media":
                return (self.media,)
            case "page":
                return _values(self.page)
            case "heading":
                return (self.heading, *self.heading.split(" > ")) if self.heading else ()
            case "part":
                return _values(self.part)
            case "title" if self.title:
                return (self.title,)
            case "year" if "year" not in self.meta:
                return _year(self.meta.get("date"))
        return _values(self.meta.get(field))


def known_fields(documents: Iterable[Facts]) -> frozenset[str]:
    """Return the fields that a filter over these documents may name."""
    named: set[str] = set()
    for facts in documents:
        named.update(facts.meta)
    return FIELDS | named | ({"year"} if "date" in named else set())


def _values(value: object) -> tuple[Value, ...]:
    """Return one value or several; what is none, as in the metadata of other programs, is left out."""
    several = value if isinstance(value, tuple | list) else (value,)
    return tuple(one for one in several if _is_value(one))


def _is_value(value: object) -> bool:
    """An integer of thousands of digits is none: neither `float` nor `str` takes it."""
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return isinstance(value, str | float)


def _year(date: MetaValue | None) -> tuple[Value, ...]:
    year = date[:4] if isinstance(date, str) else ""
    return (int(year),) if year.isascii() and year.isdecimal() else ()
