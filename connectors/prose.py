"""Headings, paragraphs and list items being written, as all text documents of Office have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epicrag.connectors.base import Parsed
from epicrag.connectors.draft import Draft
from epicrag.connectors.properties import real_title
from epicrag.connectors.rows import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epicrag.types import MetaValue

_MAX_TITLE_CHARS = 200


class Prose:
    """Writes into a draft, and finds out what the document calls itself."""

    def __init__(self) -> None:
        self.draft = Draft()
        self.title: str | None = None
        self._tops: list[tuple[int, str]] = []  # the first heading, and those as high or higher
        self._in_list = False

    def heading(self, text: str, level: int) -> None:
        """Write a heading. Level 0 is the title of the document."""
        text = one_line(text)
        if level == 0 and self.title is None:
            self.title = text[:_MAX_TITLE_CHARS]
        if level > 0 and (not self._tops or level <= self._tops[0][0]):
            self._tops.append((level, text[:_MAX_TITLE_CHARS]))
        self._write("heading", text, level)

    def slide(self, number: int, title: str) -> None:
        """Write the title of a slide; that of the first is the title of all."""
        if number == 1 and title:
            self.title = title[:_MAX_TITLE_CHARS]
        self._write("heading", one_line(title), 1)

    def plain(self, text: str) -> None:
        """Write a paragraph."""
        self._write("paragraph", text, None)

    def item(self, text: str, mark: str, depth: int) -> None:
        """Write an item of a list behind its mark, "-" or a number; "" for its further paragraphs."""
        self.draft.open("row", "\n" if self._in_list else "\n\n")
        self.draft.write_exact("  " * depth + (f"{mark} " if mark else "") + text)
        self.draft.close()
        self._in_list = True

    def text(self, text: str, level: int | None, mark: str | None, depth: int = 0) -> None:
        """Write a paragraph as what it is: a heading, an item of a list, or neither."""
        if level is not None:
            self.heading(f"{mark} {text}" if mark and mark != "-" else text, level)
        elif mark is not None:
            self.item(text, mark, depth)
        else:
            self.plain(text)

    def end_list(self) -> None:
        """What comes next is no item of the list before it."""
        self._in_list = False

    def parsed(
        self, media: str, meta: Mapping[str, MetaValue], encoding: str | None = None
    ) -> Parsed:
        """What the reader returns.

        The title is that of the text; else its first heading, where all others are below it, for of several
        chapters none is the title; else that of its properties, where it is one.
        """
        sole = self._tops[0][1] if len(self._tops) == 1 else None
        title = self.title or sole or real_title(str(meta.get("title", "")))
        others = {name: value for name, value in meta.items() if name != "title"}
        return self.draft.parsed(
            media,
            title=title,
            encoding=encoding,
            meta={**others, "title": title} if title else others,
        )

    def _write(self, kind: str, text: str, level: int | None) -> None:
        self._in_list = False
        self.draft.open("heading" if kind == "heading" else "paragraph")
        self.draft.write(text)
        self.draft.close(level)
