"""`epicrag search`: the passages nearest to a query, without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from epicrag.cli.common import Common
from epicrag.cli.output import Output, line_of, place_of
from epicrag.types import Hit

SNIPPET_CHARACTERS = 240


def search(
    common: Common,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-k", min=1, help="Passages to list.")
    ] = None,
) -> int:
    """List the passages nearest to a query, with their scores."""
    out = common.output
    with common.open() as pipeline:
        hits = pipeline.search(query, k=top_k)
    if out.jsonl:
        for rank, hit in enumerate(hits, 1):
            out.object(hit_json(rank, hit))
    elif out.json:
        out.object({"query": query, "hits": [hit_json(*ranked) for ranked in enumerate(hits, 1)]})
    else:
        for rank, hit in enumerate(hits, 1):
            _show(out, rank, hit)
    return 0


def _show(out: Output, rank: int, hit: Hit) -> None:
    place = hit.chunk.place
    heading = f" · {line_of(place.heading)}" if place.heading else ""
    where = place_of(hit.chunk.document, place)
    out.text(f"{rank:>2}. {hit.score:.3f}  {where}{heading}")
    out.text(f"    {snippet(hit.chunk.text)}")


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
        "text": chunk.text,
    }
