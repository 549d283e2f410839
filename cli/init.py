"""`epicrag init`: settings and ignore rules for a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epicrag.cli.common import Common, path
from epicrag.cli.output import shown


def init(
    common: Common,
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The folder to make ready; this one without.", metavar="[FOLDER]", parser=path
        ),
    ] = None,
) -> int:
    """Make a folder ready: write a commented epicrag.toml, and ignore rules. Overwrites nothing.

    What --model, --embed-model, --device, --home or --index say is written into it.
    """
    from epicrag.project import init as make

    out = common.output
    names = ("index", "home", "model", "embed_model", "device")
    given = {name: str(value) for name in names if (value := getattr(common, name)) is not None}
    for name in ("index", "home"):
        if name in given:
            given[name] = str(Path(given[name]).expanduser().absolute())
    made = make(folder or Path(), given)
    if out.is_machine:
        files = {"written": list(map(str, made.written)), "kept": list(map(str, made.kept))}
        out.object({"folder": str(made.folder), "index": str(made.index), **files})
        return 0
    for file in made.written:
        out.text(shown(str(file)))
    for file in made.kept:
        out.note(f"{shown(str(file))} was there already, and is as it was")
    where = "" if made.folder == Path.cwd() else f"cd {made.folder} && "
    out.note(f"next: {where}epicrag ingest .")
    return 0
