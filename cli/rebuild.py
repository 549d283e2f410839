"""`epicrag rebuild`: the fast copies again from the catalog, or all vectors by another embedder."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from epicrag.cli.common import Common
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.output import Output, count, duration
from epicrag.cli.progress import reporter

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline
    from epicrag.rebuild import Rebuilt


def rebuild(
    common: Common,
    embed_only: Annotated[
        bool,
        typer.Option(
            "--embed-only", help="Embed every passage again, with the embedder configured."
        ),
    ] = False,
) -> int:
    """Make the fast copies of vectors and words again. With --embed-only, embed all passages anew.

    No file is read again, and KV stays. The index answers with the old vectors until the new ones are all there.
    """
    out = common.output
    with common.open() as pipeline:
        done = _run(out, pipeline, embed_only)
        configured = pipeline.config.origins.get("embed_model", "default")
    if out.is_machine:
        out.object(asdict(done))
    else:
        _say(out, done, configured)
        if embed_only and done.new is None and done.embedded:
            out.note(f"{count(done.embedded, 'chunk')} without a vector had to be embedded")
        elif embed_only and done.new is None:
            out.note("nothing to embed: the vectors are of the embedder that is configured")
    if done.interrupted:
        out.note("interrupted: the index is as it was, and the next run goes on from here")
        return INTERRUPTED
    return 0


def _run(out: Output, pipeline: Pipeline, embed_only: bool) -> Rebuilt:
    from epicrag.rebuild import rebuild as copies
    from epicrag.rebuild import reembed

    with reporter(out) as report:
        if embed_only:
            return reembed(pipeline, progress=report)
        return copies(pipeline, progress=report)


def _say(out: Output, done: Rebuilt, configured: str) -> None:
    took = duration(done.ms / 1000)
    if done.interrupted:
        out.text(f"{done.embedded + done.resumed:,} of {count(done.chunks, 'chunk')} embedded")
        return
    if done.new is None:
        out.text(f"{count(done.vectors, 'vector')} of {count(done.chunks, 'chunk')} · {took}")
        return
    before = f", {done.resumed:,} of them in an earlier run" if done.resumed else ""
    out.text(
        f"{count(done.vectors, 'vector')} of {count(done.chunks, 'chunk')}{before}: "
        f"{done.old} before, {done.new} now · {took}"
    )
    if configured == "flag":
        out.note(f'keep it: put embed_model = "{done.new}" into epicrag.toml')
