"""Bytes that were handed over, under a name: what `epicrag ingest -` reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from epicrag.connectors.base import Limits, file_too_big
from epicrag.connectors.found import Found
from epicrag.types import Document, Unread

ROOT = "stdin:"


@dataclass(frozen=True, slots=True)
class Stream:
    """One document: its entry, and a source of it alone."""

    name: str
    data: bytes
    limits: Limits
    is_remote = False

    @property
    def path(self) -> str:
        return ROOT + self.name

    @property
    def size(self) -> int:
        return len(self.data)

    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def read(self) -> Document | Unread:
        from epicrag.connectors.read import read_bytes

        if self.size > self.limits.max_file_bytes:
            return Unread("skipped", file_too_big(self.size, self.limits.max_file_bytes))
        return read_bytes(self.path, self.data, limits=self.limits, name=self.name)

    def refusal(self) -> str | None:
        from epicrag.connectors.read import refusal

        return refusal(self.name, self.limits)

    def find(self) -> Found:
        # No root: `a.md/b.md` may be the name of another.
        return Found(entries=(self,), held=frozenset([self.path]), areas=(self.path,))

    def close(self) -> None:
        """Nothing is held open."""
