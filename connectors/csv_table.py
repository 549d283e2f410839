"""CSV and TSV: one row a block, with the source line of each, whatever parts the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from epicrag.connectors.base import Parsed
from epicrag.connectors.csv_rows import csv_rows
from epicrag.connectors.draft import Draft
from epicrag.connectors.rows import RowWriter, one_line, write_lines

_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_CHARS = 64_000
_SAMPLE_ROWS = 100
_SEP_LINE = re.compile(r"sep=(.)\n", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[$€£¥]?\s?\d[\d\s.,'’]*(?:[eE][-+]?\d+)?\s?[%€$]?|[-+]?(?:nan|inf)")
_DATE = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}(?:[T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(?::\d{2})?"
)
_MAX_TITLE_CHARS = 200
_MAX_NARROW = 8
_MAX_LABELS = 20
"""Names before each value may make a text this many times longer than its file, and not more."""


class Row(NamedTuple):
    """The cells of a row, and the source line it begins on."""

    cells: list[str]
    line: int


def parse_csv(text: str, encoding: str | None = None) -> Parsed:
    """Read a table whose columns are parted by commas, semicolons, tabs or bars: by whichever they are."""
    return _parse(text, encoding, "text/csv", _DELIMITERS)


def parse_tsv(text: str, encoding: str | None = None) -> Parsed:
    """Read a table whose columns are parted by tabs, unless there are none in it."""
    known = ("\t",) if "\t" in text[:_SAMPLE_CHARS] else _DELIMITERS
    return _parse(text, encoding, "text/tab-separated-values", known)


def _parse(text: str, encoding: str | None, media: str, delimiters: tuple[str, ...]) -> Parsed:
    at, line = 0, 1
    if told := _SEP_LINE.match(text):  # how Excel is told
        at, line, delimiters = told.end(), 2, (told[1],)
    delimiter = delimiters[0] if len(delimiters) == 1 else _sniff(text[at : at + _SAMPLE_CHARS])
    rows = (Row(cells, at) for cells, at in csv_rows(text, at, line, delimiter))
    draft = Draft()
    title = _write(draft, rows, text)
    return draft.parsed(
        media,
        title=title,
        encoding=encoding,
    )


def _sniff(sample: str) -> str:
    """The delimiter that gives most rows as many cells as the first one has, and more than one."""

    def fit(delimiter: str) -> tuple[float, int]:
        rows = [cells for cells, _ in islice(csv_rows(sample, 0, 1, delimiter), _SAMPLE_ROWS)]
        sizes = Counter(map(len, rows))
        if not sizes:
            return 0.0, 0
        size, count = sizes.most_common(1)[0]
        share = count / len(rows)
        regular = share if len(rows[0]) == size else share / 2
        return (round(regular, 2) if size > 1 else 0.0), size

    return max(_DELIMITERS, key=fit)


def _write(draft: Draft, rows: Iterator[Row], text: str) -> str | None:
    """Write the rows; return the title that stands above the table, if one does."""
    first = list(islice(rows, _SAMPLE_ROWS))
    n_above = _n_above(first)
    for row in first[:n_above]:
        draft.open("paragraph")
        lines = " ".join(row.cells).split("\n")
        write_lines(draft, "\n".join(map(one_line, lines)), row.line)
        draft.close()
    title = one_line(" ".join(first[0].cells)) if n_above else ""
    first = first[n_above:]
    head = first.pop(0) if has_head(first) else None
    if head is not None and _labels_cost(head.cells, text) > _MAX_LABELS * len(text):
        first, head = [head, *first], None
    names = None if head is None else head.cells
    with RowWriter(draft, names, line=head.line if head else None) as table:
        for part in (first, rows):
            for row in part:
                table.row(_shown(row.cells, names is None), line=row.line)
    return title if 0 < len(title) <= _MAX_TITLE_CHARS else None


def _labels_cost(names: list[str], text: str) -> int:
    """The characters that names before each value would take, at most."""
    return sum(map(len, names)) * text.count("\n") if len(names) > _MAX_NARROW else 0


def _shown(cells: list[str], nameless: bool) -> list[str]:
    """A wide row without names gets numbers for them: nobody counts to the 31st bar."""
    if not nameless or len(cells) <= _MAX_NARROW:
        return cells
    pairs = [(at, cell) for at, cell in enumerate(cells, 1) if cell.strip()]
    return ["; ".join(f"column {at}: {cell}" for at, cell in pairs)]


def _n_above(rows: list[Row]) -> int:
    """How many rows at the top are a title or remark: one cell filled, above rows of more."""
    filled = [sum(bool(cell.strip()) for cell in row.cells) for row in rows]
    usual = Counter(filled).most_common(1)[0][0] if filled else 0
    count = 0
    while usual > 1 and count < len(filled) and filled[count] == 1:
        count += 1
    return count


def has_head(rows: list[Row]) -> bool:
    """Does the first row say what the columns are? Where the values do not tell, it does: most do."""
    if len(rows) < 2:
        return False
    names = [cell.strip() for cell in rows[0].cells]
    evidence = 0
    for at, name in enumerate(names):
        below = [row.cells[at].strip() for row in rows[1:] if at < len(row.cells)]
        below = [cell for cell in below if cell]
        if name and below:
            evidence += _evidence(name, below)
    filled = [name for name in names if name]
    if evidence:
        return evidence > 0
    return len(set(filled)) == len(filled) and all(len(name) <= 60 for name in filled)


def _evidence(name: str, below: list[str]) -> int:
    """Does a cell differ in kind from those below it (1), or is it one of them (-1)?"""
    kinds = Counter(map(_kind, below))
    usual, count = kinds.most_common(1)[0]
    if count < 0.7 * len(below):
        return 0
    if _kind(name) != usual:
        return 1
    if usual == "text":
        return -1 if name in below else 0
    is_year = name.isdigit() and 1800 <= int(name) <= 2200
    return 0 if is_year else -1


def _kind(cell: str) -> str:
    cell = cell[:80]
    if _DATE.fullmatch(cell):
        return "date"
    return "number" if _NUMBER.fullmatch(cell.lower()) else "text"
