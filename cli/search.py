"""`epicrag search`: the passages nearest to a query, without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from epicrag.cli import look
from epicrag.cli.common import Common
from epicrag.cli.output import Output, count, line_of, place_of, shown
from epicrag.cli.reach import Face, NoServer, reach
from epicrag.types import Found, Hit

SNIPPET_CHARACTERS = 240


def search(
    common: Common,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-k", min=1, help="Passages to list.")
    ] = None,
    filter: look.Filter = None,
    mode: look.Mode = None,
    weights: look.Weights = None,
    rerank: look.Rerank = None,
    no_rerank: look.NoRerank = False,
    explain: look.Explain = False,
    no_server: NoServer = False,
) -> int:
    """List the best passages for a query, with how near they are."""
    out = common.output

    def find(face: Face) -> Found:
        found: Found = face.find(query, k=top_k, filter=filter)
        return found

    settings = look.settings(mode, weights, rerank, no_rerank)
    found = reach(common, find, no_server=no_server, settings=settings)
    hits = list(enumerate(found.hits, 1))
    if out.jsonl:
        for rank, hit in hits:
            out.object(hit_json(rank, hit))
    elif out.json:
        relevance = look.relevance_json(found.relevance)
        out.object(
            {"query": query, "hits": [hit_json(*one) for one in hits], "relevance": relevance}
        )
    else:
        for rank, hit in hits:
            _show(out, rank, hit, explain)
    if not hits:
        is_filter = found.relevance.rule == "filter"
        out.note(f"nothing was found{': ' + found.relevance.reason if is_filter else ''}")
    if explain and not out.is_machine:
        out.note(look.relevance_line(found.relevance))
    return 0


def _show(out: Output, rank: int, hit: Hit, explain: bool) -> None:
    place = hit.chunk.place
    heading = f" · {line_of(place.heading)}" if place.heading else ""
    where = place_of(hit.chunk.document, place)
    out.text(f"{rank:>2}. {hit.score:.3f}  {where}{heading}")
    out.text(f"    {snippet(hit.chunk.text)}")
    if explain:
        out.text(f"    {look.stages_line(hit)}")
    if hit.also:
        out.text(f"    the same in {count(len(hit.also), 'other document')}: {_paths(hit.also)}")


def _paths(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
    return ", ".join(map(line_of, map(shown, paths[:3]))) + more


def snippet(text: str) -> str:
    """The beginning of a passage on one line."""
    words = " ".join(text[: 4 * SNIPPET_CHARACTERS].split())
    if len(words) <= SNIPPET_CHARACTERS:
        return words
    return words[:SNIPPET_CHARACTERS].rsplit(" ", 1)[0] + " …"


def hit_json(rank: int, hit: Hit) -> dict[str, object]:
    """One hit of `search --json`: fields may be added, never renamed."""
    chunk = hit.chunk
    return {
        "rank": rank,
        "score": hit.score,
        "path": chunk.document,
        "page": chunk.place.page,
        "lines": chunk.place.lines,
        "heading": chunk.place.heading,
        "part": chunk.place.part,
        "cells": chunk.place.cells,
        "chunk": chunk.id,
        "title": chunk.title,
        "table": chunk.table,
        "tokens": chunk.n_tokens,
        "text": chunk.text,
        "stages": look.stages_json(hit),
        "also": hit.also,
    }
