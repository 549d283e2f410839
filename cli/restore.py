"""`epicrag import`: an archive into an index."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from epicrag.cli.common import Common, path
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.output import count, duration
from epicrag.cli.progress import reporter


def restore(
    common: Common,
    file: Annotated[
        Path, typer.Argument(help="What `epicrag export` wrote.", metavar="FILE", parser=path)
    ],
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Into an index that holds documents: namesakes are replaced."),
    ] = False,
    re_embed: Annotated[
        bool, typer.Option("--re-embed", help="Embed again: it was made with another embedder.")
    ] = False,
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", help="Relabel paths that begin with OLD.", metavar="OLD=NEW"),
    ] = None,
    no_kv: Annotated[bool, typer.Option("--no-kv", help="Leave its KV out.")] = False,
) -> int:
    """Put an exported archive into an empty index: checked first, then all of it or nothing."""
    from epicrag.restore import restore as put

    out = common.output
    pairs = [_pair(text) for text in maps or ()]
    with common.open(create=True) as pipeline, reporter(out) as report:
        done = put(
            pipeline,
            file,
            merge=merge,
            re_embed=re_embed,
            maps=pairs,
            kv=not no_kv,
            progress=report,
        )
    if out.is_machine:
        out.object({**asdict(done), "index": str(pipeline.config.index)})
    else:
        out.text(
            f"{count(done.documents, 'document')}, {count(done.chunks, 'chunk')}, "
            f"{count(done.vectors, 'vector')}, KV of {done.kv:,} · {duration(done.ms / 1000)}"
        )
        if done.replaced:
            out.note(f"{count(done.replaced, 'document')} of the same path replaced")
        for note in done.notes:
            out.note(f"note: {note}")
    if done.reembedded and done.reembedded.interrupted:
        out.note("interrupted: it is in with its old vectors; go on: epicrag rebuild --embed-only")
        return INTERRUPTED
    return 0


def _pair(text: str) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not sign or not old.startswith("/") or not new.startswith("/"):
        raise typer.BadParameter(f"--map takes OLD=NEW, two absolute paths, not {text!r}")
    return old, new
