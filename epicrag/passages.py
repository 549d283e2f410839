"""One passage, or those of one document, by the names a person gives them; and what an answer was read from."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epicrag.documents import document_id, meaning, unknown
from epicrag.errors import UsageError
from epicrag.types import Chunk, Source

if TYPE_CHECKING:
    from epicrag.config import Config
    from epicrag.index.catalog import Catalog, DocumentRow
    from epicrag.pipeline import Pipeline

LAST_ANSWER = "last-answer.json"
_CITATION = re.compile(r"\[?(\d{1,3})\]?")
_CHUNK_ID = re.compile(r"[0-9a-fA-F]{6,24}")
_LINES = re.compile(r"(.+):(\d+)(?:-(\d+))?")
_PAGE = re.compile(r"(.+?)(?:#(?:page=)?|, p\. ?)(\d+)")
_PART = re.compile(r"(.+?), (.+)")


class Configured(Protocol):
    """What knows which index it is about: a pipeline, or a server of it."""

    config: Config


@dataclass(frozen=True, slots=True)
class Shown:
    """A passage as `show` presents it."""

    row: int
    chunk: Chunk
    of: int
    """Passages in its document."""
    has_kv: bool
    is_asked: bool
    """False where it is only a neighbour of one that was."""

    @property
    def document(self) -> str:
        return document_id(self.chunk.document)


def show(pipeline: Pipeline, name: str, *, context: int = 0) -> list[Shown]:
    """Return the passages that a name means, in reading order, each with `context` neighbours on either side.

    A name is `[n]` of the last answer, the beginning of a chunk's id, a document as `list` knows it, or that
    with a place: PATH:line, PATH:first-last, PATH#page, or as a citation prints it. UsageError: it means
    nothing, or several things.
    """
    found = _chosen(pipeline, name)
    path = found[0][1].document
    every = pipeline.catalog.chunks(path)
    asked = {row for row, _ in found}
    at = [n for n, (row, _) in enumerate(every) if row in asked]
    near = {n + step for n in at for step in range(-context, context + 1)}
    return [
        Shown(row, chunk, len(every), _has_kv(pipeline, row), row in asked)
        for n, (row, chunk) in enumerate(every)
        if n in near
    ]


def _has_kv(pipeline: Pipeline, row: int) -> bool:
    key = pipeline.catalog.kv_key(row)
    return key is not None and pipeline.kv_store.contains(key)


def _chosen(pipeline: Pipeline, name: str) -> list[tuple[int, Chunk]]:
    """The passages of one document that a name means."""
    catalog = pipeline.catalog
    documents = catalog.documents()
    if meant := meaning(documents, name):
        return catalog.chunks(_single(meant, name).path)
    if cited := _CITATION.fullmatch(name.strip()):
        return _cited(pipeline, int(cited[1]))
    if _CHUNK_ID.fullmatch(name) and (found := _by_id(catalog, name.lower())):
        return found
    return _placed(catalog, documents, name)


def _single(meant: Sequence[DocumentRow], name: str) -> DocumentRow:
    if len(meant) > 1:
        paths = ", ".join(row.path for row in meant[:3]) + (", …" if len(meant) > 3 else "")
        raise UsageError(
            f"{name!r} means {len(meant)} documents: {paths}", "give one of them, or its id"
        )
    return meant[0]


def _by_id(catalog: Catalog, prefix: str) -> list[tuple[int, Chunk]]:
    """The chunk whose id begins so; of several with one text, the first."""
    rows = catalog.chunk_rows(prefix)
    ids = {chunk_id for _, chunk_id, _ in rows}
    if len(ids) > 1:
        raise UsageError(
            f"{len(ids)} passages have ids that begin with {prefix}", "give more of the id"
        )
    return [(rows[0][0], catalog.chunk(rows[0][0]))] if rows else []


def _placed(
    catalog: Catalog, documents: Sequence[DocumentRow], name: str
) -> list[tuple[int, Chunk]]:
    """The passages at a place of a document."""
    for pattern, at_place in ((_LINES, _on_lines), (_PAGE, _on_page), (_PART, _in_part)):
        cut = pattern.fullmatch(name)
        meant = meaning(documents, cut[1]) if cut else []
        if cut is None or not meant:
            continue
        path = _single(meant, cut[1]).path
        every = catalog.chunks(path)
        if found := [(row, chunk) for row, chunk in every if at_place(chunk, *cut.groups()[1:])]:
            return found
        raise UsageError(
            f"no passage of {path} is at {name[len(cut[1]) :].lstrip(':#, ')}",
            f"see its {len(every)} passages with: epicrag show {document_id(path)}",
        )
    raise unknown(documents, name)


def _on_lines(chunk: Chunk, first: str, last: str | None) -> bool:
    lines = chunk.place.lines
    return lines is not None and lines[0] <= int(last or first) and int(first) <= lines[1]


def _on_page(chunk: Chunk, page: str) -> bool:
    return chunk.place.page == int(page)


def _in_part(chunk: Chunk, part: str) -> bool:
    """Whether a citation's words, "slide 3" or "sheet Sales, A4:F17", name the part of a chunk."""
    own = chunk.place.part
    if own is None or not (part == own or part.startswith(own + ", ")):
        return False
    cells = chunk.place.cells
    wanted = part[len(own) :].lstrip(", ")
    return not wanted or cells is None or wanted in {":".join(cells), cells[0], *_line(chunk)}


def _line(chunk: Chunk) -> tuple[str, ...]:
    lines = chunk.place.lines
    return (f"line {lines[0]}", f"line {lines[0]}-{lines[1]}") if lines else ()


# --- the last answer -----------------------------------------------------------------------------


def remember(beside: Configured, sources: Sequence[Source]) -> None:
    """Keep beside the index which passages the numbers of an answer stand for: ids alone, no words of it.

    Where nothing can be written, nothing is: an index may be there to read only.
    """
    file = beside.config.index / LAST_ANSWER
    known = {str(source.n): source.chunk for source in sources}
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(8)}.tmp")
    with suppress(OSError):
        temporary.write_text(json.dumps(known), encoding="utf-8")
        os.replace(temporary, file)


def _cited(pipeline: Pipeline, n: int) -> list[tuple[int, Chunk]]:
    known = _remembered(pipeline.config.index / LAST_ANSWER)
    if not known:
        raise UsageError(
            f"there is no answer yet whose source [{n}] could be shown",
            'ask first: epicrag ask "…"',
        )
    chunk_id = known.get(str(n))
    if chunk_id is None:
        raise UsageError(f"the last answer has no source [{n}]", f"it has {', '.join(known)}")
    if found := _by_id(pipeline.catalog, chunk_id):
        return found
    raise UsageError(
        f"source [{n}] of the last answer is no longer in the index",
        "ask again: its file has changed",
    )


def _remembered(file: Path) -> dict[str, str]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        n: value
        for n, value in known.items()
        if isinstance(value, str) and _CHUNK_ID.fullmatch(value)
    }
