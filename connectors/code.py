"""Source code: exactly as it stands, cut where its functions, classes and blank lines are."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from epicrag.connectors.base import Parsed
from epicrag.connectors.lines import Line, line_anchors, lines_of
from epicrag.types import Block

if TYPE_CHECKING:
    import ast

_MAX_AST_CHARS = 2_000_000
_MAX_TITLE_CHARS = 120


class _Unit(NamedTuple):
    """Lines of code that belong together, counted from 1, both included."""

    first: int
    last: int
    name: str | None


def parse_code(text: str, media: str, encoding: str | None = None) -> Parsed:
    """Read source code. Python is cut at functions and methods, whose qualified name is the heading."""
    lines = list(lines_of(text))
    title, units = _python_units(text, lines) if media == "text/x-python" else (None, [])
    units = units or list(_loose_units(text, lines))
    headings = [(lines[unit.first - 1].start, unit.name) for unit in units]
    return Parsed(
        text=text,
        media=media,
        title=title,
        encoding=encoding,
        anchors=line_anchors(text, headings),
        blocks=tuple(_block(lines, unit) for unit in units),
    )


def _block(lines: list[Line], unit: _Unit) -> Block:
    return Block(lines[unit.first - 1].start, lines[unit.last - 1].end, "code")


def _loose_units(text: str, lines: list[Line]) -> Iterator[_Unit]:
    """Cut before each unindented line that follows a blank line: so most languages start a unit."""
    first = last = 0
    blank_before = False
    for line in lines:
        source = text[line.start : line.end]
        if not source or source.isspace():
            blank_before = True
            continue
        if first and blank_before and not source[0].isspace() and source[0] not in ")]}":
            yield _Unit(first, last, None)
            first = 0
        first, last, blank_before = first or line.number, line.number, False
    if first:
        yield _Unit(first, last, None)


def _python_units(text: str, lines: list[Line]) -> tuple[str | None, list[_Unit]]:
    """Return the module's title and its units; no units when it is not valid Python."""
    import ast

    if len(text) > _MAX_AST_CHARS or "\f" in text:  # a form feed shifts nothing, but resets columns
        return None, []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # their invalid escapes are not our business
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, []
    starts = list(_starts(tree.body, "", 1, text, lines))
    return _docstring_title(tree), list(_between(starts, text, lines))


def _starts(
    body: list[ast.stmt], prefix: str, first: int, text: str, lines: list[Line]
) -> Iterator[tuple[int, str | None]]:
    """Yield (line, qualified name) where a unit starts: at definitions, and at code after them."""
    import ast

    name: str | None = prefix.rstrip(".") or None
    end, after_definition = first - 1, False
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            top = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            yield _with_comments(top, end, text, lines), prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _starts(node.body, f"{prefix}{node.name}.", node.lineno, text, lines)
            after_definition = True
        elif after_definition:
            yield _with_comments(node.lineno, end, text, lines), name
            after_definition = False
        end = node.end_lineno or node.lineno


def _with_comments(top: int, floor: int, text: str, lines: list[Line]) -> int:
    """Return the first of the comment lines right above line `top`, not above line `floor + 1`."""
    while top - 1 > floor:
        line = lines[top - 2]
        if not text[line.start : line.end].lstrip().startswith("#"):
            break
        top -= 1
    return top


def _between(starts: list[tuple[int, str | None]], text: str, lines: list[Line]) -> Iterator[_Unit]:
    """Turn the starts of units into units that cover all lines that hold something."""
    bounds = [(1, None), *starts, (len(lines) + 1, None)]
    for (first, name), (following, _) in pairwise(bounds):
        filled = [
            line.number
            for line in lines[first - 1 : following - 1]
            if text[line.start : line.end].strip()
        ]
        if filled:
            yield _Unit(filled[0], filled[-1], name)


def _docstring_title(tree: ast.Module) -> str | None:
    """The first line of the module's docstring, when it is one short sentence."""
    import ast

    first_line = (ast.get_docstring(tree) or "").split("\n", 1)[0].strip()
    words = re.sub(r"[=\-~`*\s]+", " ", first_line).strip()
    return words.rstrip(".") if words and len(words) <= _MAX_TITLE_CHARS else None
