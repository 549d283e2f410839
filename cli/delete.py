"""`epicrag delete`: take documents out of the index. The files stay."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from epicrag.cli.common import Common
from epicrag.cli.complete import documents
from epicrag.cli.ingest import is_person
from epicrag.cli.output import Output, count, line_of, shown, size

if TYPE_CHECKING:
    from epicrag.documents import Deleted
    from epicrag.pipeline import Pipeline


def delete(
    common: Common,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Paths, folders, globs or ids, as `list` shows them.",
            metavar="NAME...",
            autocompletion=documents,
        ),
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Go on even if a name means several documents.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted; write nothing.")
    ] = False,
) -> int:
    """Take documents out of the index, with their passages, vectors, words and KV. The files stay."""
    out = common.output
    with common.open() as pipeline:
        gone = _run(out, pipeline, names, yes=yes, dry_run=dry_run)
    if out.is_machine:
        out.object({**asdict(gone), "dry_run": dry_run})
        return 0
    for path in gone.paths:
        out.text(line_of(shown(path)))
    _say(out, gone, dry_run)
    return 0


def _run(out: Output, pipeline: Pipeline, names: list[str], *, yes: bool, dry_run: bool) -> Deleted:
    """Delete; where a name means several documents, ask a person who can answer."""
    from epicrag.documents import UnconfirmedError
    from epicrag.documents import delete as take_out

    try:
        return take_out(pipeline, names, yes=yes, dry_run=dry_run)
    except UnconfirmedError as error:
        if out.is_machine or not is_person():
            raise
        for path in take_out(pipeline, names, dry_run=True).paths:
            out.note(line_of(shown(path)))
        question = f"{error.message[0].upper()}{error.message[1:]}. Go on?"
        if not typer.confirm(question, err=True):
            raise
    return take_out(pipeline, names, yes=True)


def _say(out: Output, gone: Deleted, dry_run: bool) -> None:
    what = f"{count(len(gone.paths), 'document')}, {count(gone.chunks, 'chunk')}"
    if dry_run:
        out.note(f"would be deleted: {what}; nothing was")
        return
    out.note(f"deleted: {what}, and {size(gone.kv_bytes)} of KV in {count(gone.kv_files, 'file')}")
    if gone.left:
        n = len(gone.left)
        are = "file is" if n == 1 else f"{n:,} files are"
        out.note(
            f"the {are} still there: the next ingest brings the text back, unless .epicragignore names it"
        )
