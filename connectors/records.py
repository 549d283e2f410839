"""Records as text: `name: value` lines, one block each, for JSON and for XML that holds data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from epicrag.connectors.decode import normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epicrag.connectors.draft import Draft

_LONG = 800
"""A record of more characters may be cut: then each of its lines is a place to cut, and its name a heading."""
_MAX_LABEL_CHARS = 80
_LABELS = ("name", "title", "label", "headline", "subject", "id", "key", "code")
_SEARCHED = 200
_ROOT = re.compile(r"[^.\[]*")


class Field(NamedTuple):
    """A value, the path that leads to it ("" for none), and the source line it stands on."""

    path: str
    value: str
    line: int | None = None
    pieces: tuple[tuple[int, str], ...] = ()
    """The value where it stands on several lines: each piece with its line."""

    def write(self, draft: Draft) -> None:
        """Write `path: value` into the open block, each piece at its line."""
        draft.line = self.line
        path = f"{self.path}: " if self.path else ""
        if not self.pieces:
            draft.write(normalise(path + self.value))
            return
        if path:
            draft.write(normalise(path))
        for line, piece in self.pieces:
            draft.line = line
            draft.write(normalise(piece))


class Records:
    """Writes records into a draft, one after the other."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._count = 0

    def write(
        self,
        fields: Sequence[Field],
        *,
        container: str = "",
        is_record: bool = True,
        level: int = 1,
    ) -> None:
        """Write a record, or values that belong to none.

        Args:
            container: what the record stands in, as a heading of `level`; "" for none.
        """
        self._count += is_record
        if not fields:
            return
        size = sum(len(field.path) + len(field.value) + 3 for field in fields)
        self._draft.enter(level, container)
        if is_record and size > _LONG:
            self._draft.enter(level + 1, label_of(fields) or f"record {self._count:,}")
        for at, field in enumerate(fields):
            self._write(field, first=at == 0, apart=size > _LONG)
        self._draft.close()

    def _write(self, field: Field, *, first: bool, apart: bool) -> None:
        draft = self._draft
        if first or apart:
            draft.close()
            draft.open("row" if apart else "paragraph", "\n\n" if first else "\n")
        else:
            draft.write_exact("\n")
        field.write(draft)


def label_of(fields: Sequence[Field]) -> str | None:
    """What a record is called: its first value under a name for names."""
    found: dict[str, Field] = {}
    for field in fields[:_SEARCHED]:
        root = _ROOT.match(field.path)
        key = root[0].lower() if root else ""
        if key in _LABELS and len(field.value) <= _MAX_LABEL_CHARS:
            found.setdefault(key, field)
    for key in _LABELS:
        if key in found:
            value = " ".join(found[key].value.split())
            return f"{found[key].path} {value}" if value.isdigit() else value
    return None
