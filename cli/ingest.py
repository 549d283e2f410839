"""`epicrag ingest`: make the index equal to files and folders, and say what became of each file."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epicrag.cli.common import INTERRUPTED, Common, path
from epicrag.cli.output import Output, count, duration, size
from epicrag.cli.progress import reporter
from epicrag.errors import PartialIngestError

if TYPE_CHECKING:
    from epicrag.pipeline import IngestResult, Pipeline


def ingest(
    common: Common,
    paths: Annotated[
        list[Path], typer.Argument(help="Files and folders.", metavar="PATH...", parser=path)
    ],
    no_kv: Annotated[bool, typer.Option("--no-kv", help="Do not compute KV now.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Go on even if most of the index would be deleted.")
    ] = False,
    chunk_size: Annotated[
        int | None, typer.Option("--chunk-size", help="Longest chunk, in the model's tokens.")
    ] = None,
    compile_mode: Annotated[
        str | None, typer.Option("--compile", help="isolated, sink, prefix or neighbour.")
    ] = None,
    quantize: Annotated[
        str | None, typer.Option("--quantize", help="none, or int8: fewer bits, faster on a CPU.")
    ] = None,
    max_file_mb: Annotated[
        int | None, typer.Option("--max-file-mb", help="Skip files larger than this.")
    ] = None,
    max_chars: Annotated[
        int | None, typer.Option("--max-chars", help="Skip texts longer than this.")
    ] = None,
    max_pages: Annotated[
        int | None, typer.Option("--max-pages", help="Skip PDFs of more pages.")
    ] = None,
    max_pdf_seconds: Annotated[
        float | None, typer.Option("--max-pdf-seconds", help="Skip PDFs that take longer to read.")
    ] = None,
    ocr: Annotated[
        str | None,
        typer.Option(
            "--ocr", help="auto: scanned PDFs, where OCR is installed; all: images too; never."
        ),
    ] = None,
    max_ocr_seconds: Annotated[
        float | None,
        typer.Option("--max-ocr-seconds", help="Skip scans that OCR takes longer for."),
    ] = None,
    max_archive_members: Annotated[
        int | None, typer.Option("--max-archive-members", help="Skip archives of more members.")
    ] = None,
    max_inflated_mb: Annotated[
        int | None, typer.Option("--max-inflated-mb", help="Skip what unpacks to more than this.")
    ] = None,
    max_inflation_ratio: Annotated[
        int | None,
        typer.Option("--max-inflation-ratio", help="Skip what unpacks to more times its size."),
    ] = None,
    max_file_seconds: Annotated[
        float | None,
        typer.Option("--max-file-seconds", help="Skip files that take longer to read."),
    ] = None,
) -> int:
    """Read files and folders into the index, and compute the KV of their passages.

    The index becomes equal to the files: what is new or changed is read, what is gone is removed.
    """
    out = common.output
    settings: dict[str, Any] = {
        "chunk_tokens": chunk_size,
        "compile": compile_mode,
        "quantize": quantize,
        "max_file_mb": max_file_mb,
        "max_chars": max_chars,
        "max_pages": max_pages,
        "max_pdf_seconds": max_pdf_seconds,
        "ocr": ocr,
        "max_ocr_seconds": max_ocr_seconds,
        "max_archive_members": max_archive_members,
        "max_inflated_mb": max_inflated_mb,
        "max_inflation_ratio": max_inflation_ratio,
        "max_file_seconds": max_file_seconds,
    }
    with common.open(create=True, **settings) as pipeline:
        result = _run(out, pipeline, paths, kv=not no_kv, dry_run=dry_run, yes=yes)
    _show(out, result)
    if result.interrupted:
        out.note("interrupted: the index is consistent, the next run resumes")
        return INTERRUPTED
    return PartialIngestError.exit_code if result.counts.get("failed") else 0


def _run(
    out: Output, pipeline: Pipeline, paths: list[Path], *, kv: bool, dry_run: bool, yes: bool
) -> IngestResult:
    """Ingest; where most of the index would go, ask a person who can answer."""
    from epicrag.pipeline import MassDeleteError

    try:
        with reporter(out) as report:
            return pipeline.ingest(paths, kv=kv, dry_run=dry_run, yes=yes, progress=report)
    except MassDeleteError as error:
        if out.is_machine or not is_person():
            raise
        question = f"{error.message[0].upper()}{error.message[1:]}. Go on?"
        if not typer.confirm(question, err=True):
            raise
    with reporter(out) as report:
        return pipeline.ingest(paths, kv=kv, yes=True, progress=report)


def is_person() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def _show(out: Output, result: IngestResult) -> None:
    if out.json and not out.jsonl:
        out.object({"files": [asdict(report) for report in result.files], **totals_json(result)})
        return
    if out.jsonl:
        out.object(totals_json(result))
    for line in summary(result):
        out.note(line)


def summary(result: IngestResult) -> list[str]:
    """Return the table under a run: how many files of each status, and what they hold."""
    counts = ", ".join(f"{n:,} {status}" for status, n in sorted(result.counts.items()))
    head = "would be, if every file can be read: " if result.dry_run else ""
    lines = [f"{head}{counts or 'no files found'}"]
    if result.dry_run:
        return lines
    lines.append(f"{count(result.chunks, 'chunk')}, {count(result.tokens, 'token')} in these files")
    if result.kv_chunks:
        done = f"{count(result.kv_chunks, 'chunk')}, {count(result.kv_tokens, 'token')}"
        lines.append(f"KV computed for {done}")
    lines.append(f"KV on disk {size(result.kv_bytes)} · {duration(result.ms / 1000)}")
    return lines


def totals_json(result: IngestResult) -> dict[str, object]:
    """The shape of `ingest --json` below its files: fields may be added, never renamed."""
    totals = {
        **result.counts,
        "chunks": result.chunks,
        "tokens": result.tokens,
        "kv_bytes": result.kv_bytes,
        "kv_chunks": result.kv_chunks,
        "kv_tokens": result.kv_tokens,
    }
    return {
        "totals": totals,
        "ms": result.ms,
        "dry_run": result.dry_run,
        "interrupted": result.interrupted,
        "notes": result.notes,
    }
