"""`epicrag show`: a passage, or all of a document, as the model reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from epicrag.cli.common import Common
from epicrag.cli.complete import documents
from epicrag.cli.output import Output, clean, line_of, place_of

if TYPE_CHECKING:
    from epicrag.passages import Shown


def show(
    common: Common,
    name: Annotated[
        str,
        typer.Argument(
            help="A document, a passage's id, PATH:line, PATH#page, or [n] of the last answer.",
            metavar="NAME",
            autocompletion=documents,
        ),
    ],
    context: Annotated[
        int, typer.Option("--context", "-C", min=0, help="Passages before and after it, too.")
    ] = 0,
) -> int:
    """Show a passage with its place, as the model reads it; or every passage of a document."""
    from epicrag.passages import show as passages

    out = common.output
    with common.open() as pipeline:
        found = passages(pipeline, name, context=context)
    if out.jsonl:
        for shown in found:
            out.object(passage_json(shown))
    elif out.json:
        first = found[0]
        head = {"document": first.document, "path": first.chunk.document, "of": first.of}
        out.object({**head, "passages": [passage_json(shown) for shown in found]})
    else:
        for shown in found:
            _print(out, shown)
    return 0


def _print(out: Output, shown: Shown) -> None:
    chunk = shown.chunk
    heading = f" · {line_of(chunk.place.heading)}" if chunk.place.heading else ""
    kv = "KV on disk" if shown.has_kv else "no KV on disk"
    near = "" if shown.is_asked else " · beside it"
    out.text(
        f"--- {place_of(chunk.document, chunk.place)}{heading} · passage {chunk.ordinal + 1} of {shown.of} · "
        f"{chunk.n_tokens} tokens · {kv} · {chunk.id}{near}"
    )
    if chunk.header:
        out.text(f"[{clean(chunk.header.rstrip())}]")
    out.text(chunk.text.strip("\n"))


def passage_json(shown: Shown) -> dict[str, object]:
    """One passage of `show --json`: fields may be added, never renamed."""
    chunk = shown.chunk
    return {
        "chunk": chunk.id,
        "document": shown.document,
        "path": chunk.document,
        "ordinal": chunk.ordinal,
        "page": chunk.place.page,
        "lines": chunk.place.lines,
        "heading": chunk.place.heading,
        "part": chunk.place.part,
        "cells": chunk.place.cells,
        "tokens": chunk.n_tokens,
        "kv": shown.has_kv,
        "asked": shown.is_asked,
        "header": chunk.header,
        "text": chunk.text,
    }
