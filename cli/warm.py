"""`epicrag warm`: compute KV before it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epicrag.cli.common import Common, CompileMode, Quantize, path
from epicrag.cli.complete import Names
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.ingest import summary
from epicrag.cli.output import count
from epicrag.cli.progress import reporter


def warm(
    common: Common,
    names: Names = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions", help="Only what these questions find.", metavar="FILE", parser=path
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Only so many, the most used first.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-k", min=1, help="Passages to find for a question.")
    ] = None,
    compile_mode: CompileMode = None,
    quantize: Quantize = None,
) -> int:
    """Compute the KV that is missing, so that the next questions need not. Ctrl-C loses nothing."""
    from epicrag.warm import warm as compute

    out = common.output
    with (
        common.open(compile=compile_mode, quantize=quantize) as pipeline,
        reporter(out) as report,
    ):
        done = compute(
            pipeline, names or (), questions=questions, top=top, k=top_k, progress=report
        )
    run = done.run
    if out.is_machine:
        out.object(
            {
                "wanted": done.wanted,
                "ready": done.ready,
                "kv_chunks": run.kv_chunks,
                "kv_tokens": run.kv_tokens,
                "kv_bytes": run.kv_bytes,
                "ms": run.ms,
                "interrupted": run.interrupted,
                "notes": run.notes,
            }
        )
    else:
        out.text(f"{done.ready:,} of {count(done.wanted, 'chunk')} with KV on disk")
        for line in summary(run)[2:]:
            out.note(line)
    if run.interrupted:
        out.note("interrupted: what was computed is kept, the next run goes on")
        return INTERRUPTED
    return 0
