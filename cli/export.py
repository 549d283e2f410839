"""`epicrag export`: the index as one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from epicrag.cli.common import Common, path
from epicrag.cli.output import count, duration, size
from epicrag.cli.progress import reporter


def export(
    common: Common,
    file: Annotated[
        Path, typer.Argument(help="The archive to write.", metavar="FILE", parser=path)
    ],
    kv: Annotated[bool, typer.Option("--kv", help="With KV: many times larger.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> int:
    """Write the index to one file that `epicrag import` reads on any machine. Loads no model."""
    from epicrag.export import export as write

    out = common.output
    with common.open() as pipeline, reporter(out) as report:
        done = write(pipeline, file, kv=kv, force=force, progress=report)
    if out.is_machine:
        out.object({**asdict(done), "path": str(done.path.absolute())})
        return 0
    out.text(str(done.path))
    kv_said = f", KV of {count(done.kv, 'entry').replace('entrys', 'entries')}" if kv else ", no KV"
    out.note(
        f"{count(done.documents, 'document')}, {count(done.chunks, 'chunk')}, "
        f"{count(done.vectors, 'vector')}{kv_said} · {size(done.bytes)} · {duration(done.ms / 1000)}"
    )
    if done.left_out:
        out.note(
            f"note: the KV of {done.left_out:,} was not on disk, or not whole, and is left out"
        )
    return 0
