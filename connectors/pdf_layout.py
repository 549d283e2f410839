"""The order of a page's text by where it stands: rows of tables together, lists side by side apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

ROW, HEAD = "\ufdd0", "\ufdd1"
"""Noncharacters, which no text has: a line that begins with one is a row of a table, or its head."""
CELL = " | "

_DIGIT = re.compile(r"\d")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff]")
_NUMERIC = re.compile(r"[-+($€£]?[\d.,:/ -]*\d[\d.,:/ -]*%?\)?|[-–—*.]+|n/?a", re.IGNORECASE)
_BULLET = re.compile("[•●▪◦■·\uf0a7\uf0b7\uf0d8\uf0fc] ?\\S|[*–-] \\D")
_LONE_BULLET = re.compile("[•●▪◦■·*\uf0a7\uf0b7\uf0d8\uf0fc]")
_MIN_ROWS = 3
_MIN_PAIRS = 4
_MAX_CELL_CHARS = 45
_MAX_HEAD_LINES = 4


class Piece(NamedTuple):
    """Characters that stand together; the box counts points from the page's left and top."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class _Line:
    """Pieces at one height, from left to right, each with its place in PDFium's order."""

    pieces: tuple[tuple[int, Piece], ...]

    @property
    def cells(self) -> tuple[Piece, ...]:
        return tuple(piece for _, piece in self.pieces)


def arranged(pieces: Sequence[Piece]) -> str | None:
    """Return a page's text in another order than PDFium's; None when that order is as good.

    Rows of tables are lines that begin with `ROW`, those of a table's head with `HEAD`.
    """
    pieces = _with_bullets([piece for piece in pieces if not _is_upright(piece)])
    lines = _lines(pieces)
    placed = _tables(lines) or _columns(lines)
    if not placed:
        return None
    return "\n".join(_in_order(pieces, placed))


class _Placed(NamedTuple):
    """Pieces that go together, by their place in PDFium's order, and the lines they become."""

    pieces: frozenset[int]
    lines: tuple[str, ...]


def _is_upright(piece: Piece) -> bool:
    """Does it run up or down the margin?"""
    return len(piece.text) > 3 and piece.bottom - piece.top > 3 * (piece.right - piece.left)


def _with_bullets(pieces: Sequence[Piece]) -> list[Piece]:
    """Join a bullet that stands alone with the words behind it, and a superscript with what it stands at."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and _LONE_BULLET.fullmatch(last.text) and _same_height(last, piece):
            joined[-1] = Piece(f"{last.text} {piece.text}", last.left, *piece[2:])
        elif last and _touches(last, piece):
            top, bottom = min(last.top, piece.top), max(last.bottom, piece.bottom)
            joined[-1] = Piece(last.text + piece.text, last.left, top, piece.right, bottom)
        else:
            joined.append(piece)
    return joined


def _touches(one: Piece, other: Piece) -> bool:
    """Does one end where the other begins, as around a superscript?"""
    height = max(one.bottom - one.top, other.bottom - other.top)
    near = abs(other.left - one.right) < 0.25 * height
    return near and min(one.bottom, other.bottom) > max(one.top, other.top)


def _lines(pieces: Sequence[Piece]) -> list[_Line]:
    """Gather the pieces into lines by height."""
    order = sorted(range(len(pieces)), key=lambda at: (pieces[at].top + pieces[at].bottom) / 2)
    lines: list[list[int]] = []
    for at in order:
        if lines and _same_height(pieces[lines[-1][0]], pieces[at]):
            lines[-1].append(at)
        else:
            lines.append([at])
    return [
        _Line(tuple((at, pieces[at]) for at in sorted(line, key=lambda at: pieces[at].left)))
        for line in _with_spanning(lines, pieces)
    ]


def _with_spanning(lines: list[list[int]], pieces: Sequence[Piece]) -> list[list[int]]:
    """Put cells that span two rows, and so stand between them, into the row whose cells leave them room."""
    joined: list[list[int]] = []
    for line in lines:
        if joined and _fits(joined[-1], line, pieces):
            joined[-1].extend(line)
        else:
            joined.append(line)
    return joined


def _fits(above: list[int], line: list[int], pieces: Sequence[Piece]) -> bool:
    one = [pieces[at] for at in above]
    other = [pieces[at] for at in line]
    shared = min(piece.bottom for piece in one) - max(piece.top for piece in other)
    height = min(piece.bottom - piece.top for piece in other)
    if shared < -0.3 * height or len(other) >= len(one) or len(one) + len(other) < 4:
        return False
    return all(a.right < b.left or b.right < a.left for a in one for b in other)


def _same_height(one: Piece, other: Piece) -> bool:
    shared = min(one.bottom, other.bottom) - max(one.top, other.top)
    return shared > 0.5 * min(one.bottom - one.top, other.bottom - other.top)


# --- tables --------------------------------------------------------------------------------------


def _tables(lines: Sequence[_Line]) -> list[_Placed]:
    """Find runs of lines whose cells stand below each other."""
    found: list[_Placed] = []
    run: list[_Line] = []
    for line in [*lines, None]:
        if line is not None and _is_row(line) and (not run or _goes_on(run, line)):
            run.append(line)
            continue
        if _is_table(run):
            found.append(_placed(run, _line_above(lines, run[0])))
        run = [line] if line is not None and _is_row(line) else []
    return found


def _line_above(lines: Sequence[_Line], first: _Line) -> _Line | None:
    """The line right above a table that says what its columns are, though its words are not apart."""
    at = next(at for at, line in enumerate(lines) if line is first)
    if at == 0 or len(lines[at - 1].cells) != 1:
        return None
    above, cells = lines[at - 1].cells[0], first.cells
    height, width = cells[0].bottom - cells[0].top, cells[-1].right - cells[0].left
    near = cells[0].top - above.bottom <= 3 * height and above.right - above.left >= 0.6 * width
    prose = above.text.rstrip().endswith((".", ",", ";")) or len(above.text) > 400
    return lines[at - 1] if near and not prose else None


def _is_row(line: _Line) -> bool:
    cells = line.cells
    if len(cells) < 2 or any(_BULLET.match(cell.text) for cell in cells[1:]):
        return False
    return median(len(cell.text) for cell in cells) <= _MAX_CELL_CHARS


def _goes_on(run: Sequence[_Line], line: _Line) -> bool:
    """Do the cells of a line stand below cells of the lines above, not far away?"""
    above = run[-1].cells
    height = max(cell.bottom - cell.top for cell in line.cells)
    if line.cells[0].top - above[0].bottom > 4 * height:
        return False
    known = [cell for row in run[-3:] for cell in row.cells]
    below = [
        any(
            cell.left - height / 2 <= one.right and one.left <= cell.right + height / 2
            for one in known
        )
        for cell in line.cells
    ]
    return sum(below) >= len(below) / 2


def _aligned(one: Piece, other: Piece, slack: float) -> bool:
    """Do two cells begin, end or stand centred at the same x, give or take `slack`?"""
    centres = abs(one.left + one.right - other.left - other.right) / 2
    return (
        abs(one.left - other.left) <= slack
        or abs(one.right - other.right) <= slack
        or centres <= slack
    )


def _is_table(run: Sequence[_Line]) -> bool:
    """Is this a table and no text in columns: three rows, of numbers or of short cells?"""
    if len(run) < _MIN_ROWS:
        return False
    cells = [cell for line in run for cell in line.cells]
    # Where a line begins does not count: transcripts have numbers before their lines.
    values = [cell for line in run for cell in _values(line)]
    if sum(map(_is_number, values)) >= 0.3 * len(values):
        return _share_aligned(run, 0.6) >= 0.5
    if len(run) >= _MIN_PAIRS and all(len(line.cells) == 2 for line in run):
        return _are_pairs(run)
    wide = sum(len(line.cells) >= 3 for line in run)
    short = median(len(cell.text) for cell in cells) <= 20
    rows = len(run) >= _MIN_PAIRS and wide >= 0.6 * len(run)
    return rows and short and _share_aligned(run, 0.3) >= 0.8


def _values(line: _Line) -> tuple[Piece, ...]:
    """The cells of a row but the one that a reader begins with."""
    turned = _RIGHT_TO_LEFT.search(line.cells[-1].text) is not None
    return line.cells[:-1] if turned else line.cells[1:]


def _share_aligned(run: Sequence[_Line], slack: float) -> float:
    """The share of cells that stand exactly below a cell of the line above."""
    below = [
        any(_aligned(cell, other, slack * (cell.bottom - cell.top)) for other in above.cells)
        for above, line in pairwise(run)
        for cell in line.cells
    ]
    return sum(below) / max(len(below), 1)


def _are_pairs(run: Sequence[_Line]) -> bool:
    """Are these names with their values, as on a form: short names, and both columns aligned?"""
    names, values = zip(*(line.cells for line in run), strict=True)
    if median(len(name.text) for name in names) > 25 or max(len(n.text) for n in names) > 40:
        return False
    return all(
        max(cell.left for cell in column) - min(cell.left for cell in column) <= 4
        for column in (names, values)
    )


def _placed(run: Sequence[_Line], above: _Line | None) -> _Placed:
    n_head = _n_head(run)
    if n_head == 0 and above is not None and not any(map(_is_number, above.cells)):
        run, n_head = [above, *run], 1
    texts = [
        (HEAD if at < n_head else ROW) + CELL.join(_ordered(line)) for at, line in enumerate(run)
    ]
    pieces = frozenset(at for line in run for at, _ in line.pieces)
    return _Placed(pieces, tuple(texts))


def _ordered(line: _Line) -> list[str]:
    """The cells of a row in reading order: from the right where most of them are Hebrew or Arabic."""
    cells = [cell.text.strip() for cell in line.cells]
    letters = [cell for cell in cells if any(map(str.isalpha, cell))]
    turned = sum(_RIGHT_TO_LEFT.search(cell) is not None for cell in letters)
    return cells[::-1] if turned > len(letters) / 2 else cells


def _n_head(run: Sequence[_Line]) -> int:
    """How many lines at the top say what the columns are: words above numbers."""
    numbers = [sum(map(_is_number, line.cells)) / len(line.cells) for line in run]
    n_head = 0
    while n_head < min(len(run), _MAX_HEAD_LINES) and numbers[n_head] < 0.2:
        n_head += 1
    below = numbers[n_head:]
    if not below or sum(share >= 0.2 for share in below) < 0.6 * len(below):
        return 0
    return n_head


def _is_number(cell: Piece) -> bool:
    return (
        _NUMERIC.fullmatch(cell.text.strip()) is not None and _DIGIT.search(cell.text) is not None
    )


# --- lists side by side --------------------------------------------------------------------------


def _columns(lines: Sequence[_Line]) -> list[_Placed]:
    """Find two lists side by side that PDFium reads across: each line of both begins with a bullet."""
    found: list[_Placed] = []
    run: list[_Line] = []
    for line in [*lines, None]:
        if line is not None and (len(line.cells) <= 2) and (not run or _below(run[-1], line)):
            run.append(line)
            continue
        if placed := _split(run):
            found.append(placed)
        run = [line] if line is not None and len(line.cells) <= 2 else []
    return found


def _below(above: _Line, line: _Line) -> bool:
    height = max(cell.bottom - cell.top for cell in above.cells)
    return line.cells[0].top - above.cells[0].bottom <= 3 * height


def _split(run: Sequence[_Line]) -> _Placed | None:
    """Part lines at the gutter between two lists; None when there are not two."""
    double = [line for line in run if len(line.cells) == 2]
    bulleted = [line for line in double if _BULLET.match(line.cells[1].text)]
    if len(bulleted) < _MIN_ROWS or len(bulleted) < 0.6 * len(double):
        return None
    gutter = median(line.cells[1].left for line in bulleted)
    first = next(at for at, line in enumerate(run) if len(line.cells) == 2)
    body: list[_Line] = []
    for line in run[first:]:
        # A line that crosses the gutter ends the lists.
        if any(cell.left < gutter - 5 and cell.right > gutter + 5 for cell in line.cells):
            break
        body.append(line)
    sides: tuple[list[str], list[str]] = ([], [])
    for line in body:
        for cell in line.cells:
            sides[cell.left >= gutter - 5].append(cell.text.strip())
    if not sides[0] or not sides[1]:
        return None
    pieces = frozenset(at for line in body for at, _ in line.pieces)
    return _Placed(pieces, (*sides[0], *sides[1]))


# --- putting a page together ---------------------------------------------------------------------


def _in_order(pieces: Sequence[Piece], placed: Sequence[_Placed]) -> list[str]:
    """Return the lines of a page: what was placed stands where PDFium had its first piece."""
    of_piece = {at: group for group in placed for at in group.pieces}
    written: set[int] = set()
    lines: list[str] = []
    done: set[int] = set()
    before: Piece | None = None
    for at, piece in enumerate(pieces):
        if at in done:
            continue
        group = of_piece.get(at)
        if group is None:
            if before is not None and _same_height(before, piece) and piece.left >= before.left:
                lines[-1] += f" {piece.text}"
            else:
                lines.append(piece.text)
            before = piece
            continue
        before = None
        if id(group) not in written:
            written.add(id(group))
            lines.extend(_among(pieces, group, of_piece, done))
            lines.extend(group.lines)
    return lines


def _among(
    pieces: Sequence[Piece], group: _Placed, of_piece: dict[int, _Placed], done: set[int]
) -> list[str]:
    """What PDFium has among the pieces of a group, but stands above them: captions, the top of a head."""
    top = min(pieces[at].top for at in group.pieces)
    within = range(min(group.pieces), max(group.pieces))
    above = [at for at in within if at not in of_piece and pieces[at].bottom <= top + 1]
    done.update(above)
    return [pieces[at].text for at in above]
