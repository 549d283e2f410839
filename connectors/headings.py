"""The headings in force at a point of a document."""

from __future__ import annotations

_MAX_CHARS = 200


class Headings:
    """A stack of headings: a heading closes those of its own level and deeper."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, heading: str) -> str | None:
        """Open a heading, and return the path of headings now in force."""
        self._open = [(depth, name) for depth, name in self._open if depth < level]
        heading = " ".join(heading.split())
        if len(heading) > _MAX_CHARS:  # a paragraph in a heading's clothes
            heading = heading[: _MAX_CHARS - 1].rstrip() + "…"
        if heading:
            self._open.append((level, heading))
        return self.path

    @property
    def path(self) -> str | None:
        """The open headings, outermost first, joined by " > "; None above the first heading."""
        return " > ".join(name for _, name in self._open) or None
