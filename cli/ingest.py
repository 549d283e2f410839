"""`epicrag ingest`: make the index equal to its sources, and say what became of each file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epicrag.cli.common import Common, CompileMode, Quantize, path
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.output import Output, count, duration, size
from epicrag.cli.progress import Lines, reporter
from epicrag.errors import PartialIngestError, UsageError

if TYPE_CHECKING:
    from epicrag.pipeline import IngestResult, Manner, Pipeline, Progress

    Run = Callable[[Manner, Progress], IngestResult]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def place(text: str) -> Any:
    """Read a path or an address: a path would lose one of an address's slashes."""
    return text if _ADDRESS.match(text) else path(text)


def ingest(
    common: Common,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files, folders, addresses of pages or sitemaps; - reads standard input.",
            metavar="PATH...",
            parser=place,
        ),
    ] = None,
    urls: Annotated[
        Path | None,
        typer.Option("--urls", help="Addresses too, one a line.", metavar="FILE", parser=path),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="With -: what to call it, as in notes.md. With --reader: what its documents belong to.",
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option("--reader", help="A reader of LlamaIndex instead.", metavar="MODULE:CLASS"),
    ] = None,
    reader_args: Annotated[
        str | None, typer.Option("--reader-args", help="Its arguments, as JSON.", metavar="JSON")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and take over every change; Ctrl-C ends.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait while another process writes.")
    ] = 10.0,
    hidden: Annotated[
        bool | None, typer.Option("--hidden/--no-hidden", help="Take hidden files too.")
    ] = None,
    ignore_files: Annotated[
        bool | None,
        typer.Option("--ignore/--no-ignore", help="Honour .gitignore and .epicragignore."),
    ] = None,
    follow_symlinks: Annotated[
        bool | None,
        typer.Option(
            "--follow-symlinks/--no-follow-symlinks",
            help="Read hidden and ignored files that a link below the same path leads to.",
        ),
    ] = None,
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
    compile_mode: CompileMode = None,
    quantize: Quantize = None,
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
    """Read files, folders and web pages into the index, and compute the KV of their passages.

    The index becomes equal to them: what is new or changed is read, what is gone is removed.
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
        "hidden": hidden,
        "ignore_files": ignore_files,
        "follow_symlinks": follow_symlinks,
    }
    given: list[Path | str] = [*(paths or ()), *_listed(urls)]
    _refuse_contradiction(out, given, name=name, reader=reader, watch=watch, dry_run=dry_run)
    from epicrag.pipeline import Manner

    manner = Manner(kv=not no_kv, dry_run=dry_run, yes=yes, wait=wait)
    with common.open(create=True, **settings) as pipeline:
        if watch:
            return _watch(out, pipeline, given, manner)
        result = _run(out, manner, _source(pipeline, given, name, reader, reader_args))
    _show(out, result)
    if result.interrupted:
        out.note("interrupted: the index is consistent, the next run resumes")
        return INTERRUPTED
    return PartialIngestError.exit_code if result.counts.get("failed") else 0


def _refuse_contradiction(
    out: Output,
    given: list[Path | str],
    *,
    name: str | None,
    reader: str | None,
    watch: bool,
    dry_run: bool,
) -> None:
    """UsageError for flags that mean nothing together."""
    is_stream = Path("-") in given
    if not given and reader is None:
        raise UsageError("there is nothing to ingest", "give a path: epicrag ingest PATH")
    if is_stream and (len(given) > 1 or not name or watch or reader):
        raise UsageError(
            "standard input is one document, and needs a name",
            "epicrag ingest - --name notes.md < notes.md",
        )
    if name and not is_stream and not reader:
        raise UsageError(
            "--name is for standard input and readers", "epicrag ingest - --name notes.md"
        )
    if reader and given:
        raise UsageError("--reader takes no paths", "give its arguments with --reader-args")
    if watch and (reader or dry_run):
        raise UsageError("--watch follows files", "leave out --reader and --dry-run")
    if watch and out.json and not out.jsonl:
        raise UsageError("--watch has no end that one JSON object could stand at", "use --jsonl")


def _listed(file: Path | None) -> list[str]:
    """Read addresses, one a line; empty lines and those that begin with # are passed over."""
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", "--urls FILE has an address a line"
        ) from error
    listed = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for line in listed:
        if not _ADDRESS.match(line):
            raise UsageError(f"{file} has a line that is no address: {line[:200]}", "https://…")
    return listed


def _source(
    pipeline: Pipeline,
    given: list[Path | str],
    name: str | None,
    reader: str | None,
    reader_args: str | None,
) -> Run:
    """Return what ingests that which was asked for."""
    if reader is not None:
        arguments = _arguments(reader_args)
        root = name or reader.rpartition(":")[2]
        return lambda manner, report: pipeline.ingest_reader(
            reader, arguments, root, manner, report
        )
    if name is not None:
        data = sys.stdin.buffer.read((pipeline.config.max_file_mb << 20) + 1)
        return lambda manner, report: pipeline.ingest_bytes(name, data, manner, report)
    return lambda manner, report: pipeline.ingest(
        given,
        kv=manner.kv,
        dry_run=manner.dry_run,
        yes=manner.yes,
        wait=manner.wait,
        progress=report,
    )


def _arguments(text: str | None) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(
            f"--reader-args is no JSON: {error}", '\'{"input_dir": "docs"}\''
        ) from None
    if not isinstance(arguments, dict):
        raise UsageError("--reader-args is no JSON object", '\'{"input_dir": "docs"}\'')
    return arguments


def _run(out: Output, manner: Manner, run: Run) -> IngestResult:
    """Ingest; where most of the index would go, ask a person who can answer."""
    from epicrag.pipeline import MassDeleteError

    try:
        with reporter(out) as report:
            return run(manner, report)
    except MassDeleteError as error:
        _ask(out, error)
    with reporter(out) as report:
        return run(replace(manner, yes=True), report)


def _ask(out: Output, error: Any) -> None:
    """Return if a person says yes to what would be deleted; raise the error otherwise."""
    if out.is_machine or not is_person():
        raise error
    question = f"{error.message[0].upper()}{error.message[1:]}. Go on?"
    if not typer.confirm(question, err=True):
        raise error


def _watch(out: Output, pipeline: Pipeline, given: list[Path | str], manner: Manner) -> int:
    """Follow changes until Ctrl-C; that is 130, as for everything that is interrupted."""
    from epicrag.pipeline import MassDeleteError

    for is_asked in (False, True):
        try:
            pipeline.watch(given, manner, Lines(out))
        except MassDeleteError as error:
            if is_asked:
                raise
            _ask(out, error)
            result = _run(
                out, replace(manner, yes=True), _source(pipeline, given, None, None, None)
            )
            _show(out, result)
            continue
        except KeyboardInterrupt:
            pass
        break
    out.note("stopped: the index is consistent, the next run resumes")
    return INTERRUPTED


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
    ignored = f" · {result.ignored:,} hidden or ignored" if result.ignored else ""
    lines = [f"{head}{counts or 'no files found'}{ignored}"]
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
        "ignored": result.ignored,
    }
