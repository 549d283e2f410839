"""Rows of CSV with the lines they begin on; a quote that is never closed costs its own line only."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

_MAX_MENDED = 8


def csv_rows(text: str, start: int, line: int, delimiter: str) -> Iterator[tuple[list[str], int]]:
    """Yield the cells of each row from offset `start` on, and the source line it begins on.

    Args:
        line: the source line at `start`.
    """
    # The limit is the whole process's: it is only ever raised, to what one cell may hold here.
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    mended = 0
    while start < len(text):
        source = _Lines(text, start)
        plain = mended >= _MAX_MENDED
        reader = csv.reader(
            source, delimiter=delimiter, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
        )
        before = 0
        for cells in reader:
            if reader.line_num > before + 1 and source.is_unclosed:
                break  # the row swallowed everything below it
            if any(cells):
                yield cells, line + before
            before = reader.line_num
            source.begin()
        else:
            return
        start = source.began
        end = text.index("\n", start) + 1
        lone = io.StringIO(text[start:end])
        yield from (
            (cells, line + before)
            for cells in csv.reader(lone, delimiter=delimiter, quoting=csv.QUOTE_NONE)
            if any(cells)
        )
        start, line, mended = end, line + before + 1, mended + 1


class _Lines(Iterator[str]):
    """The lines of a text from an offset on; knows where the row being read began."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._at = start
        self.began = start

    def begin(self) -> None:
        """The next row begins where the last one ended."""
        self.began = self._at

    @property
    def is_unclosed(self) -> bool:
        """Did the text end within quotes? Then the row has an odd number of them."""
        at_end = self._at >= len(self._text)
        return at_end and self._text.count('"', self.began) % 2 == 1

    def __next__(self) -> str:
        if self._at >= len(self._text):
            raise StopIteration
        end = self._text.find("\n", self._at) + 1 or len(self._text)
        line = self._text[self._at : end]
        self._at = end
        return line
