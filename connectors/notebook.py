"""Jupyter notebooks: prose, code and what it printed, cell by cell; pictures are left out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Parsed
from epicrag.connectors.decode import normalise
from epicrag.connectors.draft import Draft
from epicrag.connectors.graft import graft
from epicrag.connectors.markdown import parse_markdown
from epicrag.connectors.text import parse_text
from epicrag.types import Unread

if TYPE_CHECKING:
    from epicrag.types import MetaValue

_DATA_URI = re.compile(r"data:[\w.+/-]+;base64,[A-Za-z0-9+/=\s]+")
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REPR = re.compile(r"<[^<>\n]*(?:object|Figure|Axes|at 0x)[^<>\n]*>|\[<[^\n]*at 0x[^\n]*>\]")
_OVERWRITTEN = re.compile(r"^.*\r(?!\n)", re.MULTILINE)
_MAX_HEADING_LEVEL = 6


def parse_notebook(text: str, encoding: str | None = None) -> Parsed | Unread:
    """Read a notebook of format 3 or 4. `Anchor.part` is the cell, counted from 1."""
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno:,}, column {error.colno:,}"
        return Unread("failed", f"not a notebook: its JSON breaks at {where}: {error.msg}")
    except (RecursionError, ValueError) as error:
        return Unread("failed", f"not a notebook: its JSON cannot be read ({error})")
    cells = _cells(notebook)
    if cells is None:
        return Unread("failed", 'not a notebook: it has neither "cells" nor "worksheets"')
    writer = _Writer()
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict):
            writer.cell(cell, number)
    draft = writer.draft
    about = notebook.get("metadata")
    about = about if isinstance(about, dict) else {}
    title = about.get("title")
    return draft.parsed(
        "application/x-ipynb+json",
        title=title if isinstance(title, str) and title.strip() else writer.title,
        encoding=encoding,
        meta=_meta(about),
    )


def _cells(notebook: Any) -> list[Any] | None:
    """The cells: right in a notebook of format 4, in worksheets in one of format 3."""
    if not isinstance(notebook, dict):
        return None
    if isinstance(notebook.get("cells"), list):
        return list(notebook["cells"])
    sheets = notebook.get("worksheets")
    if not isinstance(sheets, list):
        return None
    inner = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
    return [cell for cells in inner if isinstance(cells, list) for cell in cells]


def _meta(about: dict[str, Any]) -> dict[str, MetaValue]:
    authors = about.get("authors")
    people = authors if isinstance(authors, list) else []
    names = [person.get("name") if isinstance(person, dict) else person for person in people]
    found = tuple(name for name in names if isinstance(name, str) and name)
    return {"author": found} if found else {}


def _string(source: Any) -> str:
    """A text that may be written as a list of lines."""
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


class _Writer:
    def __init__(self) -> None:
        self.draft = Draft()
        self.title: str | None = None

    def cell(self, cell: dict[str, Any], number: int) -> None:
        self.draft.part = f"cell {number}"
        kind = cell.get("cell_type")
        source = normalise(_string(cell.get("source", cell.get("input"))))
        if kind == "heading":  # format 3
            level = cell.get("level")
            level = level if isinstance(level, int) else 1
            kind = "markdown"
            source = "#" * min(max(level, 1), _MAX_HEADING_LEVEL) + " " + source
        if kind == "markdown":
            page = parse_markdown(_DATA_URI.sub("(data)", source))
            self.title = self.title or page.title
            graft(self.draft, page)
        elif kind == "code":
            self._code(source)
            outputs = cell.get("outputs")
            for output in outputs if isinstance(outputs, list) else []:
                if isinstance(output, dict):
                    self._output(output)
        else:
            graft(self.draft, parse_text(source))

    def _code(self, source: str) -> None:
        if not source.strip():
            return
        self.draft.open("code")
        self.draft.write_exact(source.strip("\n"))
        self.draft.close()

    def _output(self, output: dict[str, Any]) -> None:
        kind = output.get("output_type")
        if kind == "stream":
            self._code(_printed(_string(output.get("text"))))
        elif kind in ("error", "pyerr"):
            told = f"{output.get('ename', '')}: {output.get('evalue', '')}".strip(": ")
            self._code(_printed(told))
        elif kind in ("execute_result", "display_data", "pyout"):
            self._result(output)

    def _result(self, output: dict[str, Any]) -> None:
        """Write a result in one of the forms it is given in: as text, else as Markdown or HTML."""
        data = output.get("data")
        forms = data if isinstance(data, dict) else output  # format 3 has them in the output itself
        plain = _string(forms.get("text/plain", forms.get("text")))
        markdown = _string(forms.get("text/markdown"))
        markup = _string(forms.get("text/html", forms.get("html")))
        if plain.strip() and not _REPR.fullmatch(plain.strip()):
            self._code(_printed(plain))
        elif markdown:
            graft(self.draft, parse_markdown(_DATA_URI.sub("(data)", normalise(markdown))))
        elif markup:
            from epicrag.connectors.html import parse_html

            page = parse_html(normalise(markup))
            if isinstance(page, Parsed):
                graft(self.draft, page)
        else:
            self._code(_printed(_string(forms.get("text/latex", forms.get("latex")))))


def _printed(text: str) -> str:
    """What a terminal would show in the end: without colours, and without what was overwritten."""
    return normalise(_OVERWRITTEN.sub("", _TERMINAL.sub("", text)))
