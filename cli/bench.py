"""`epicrag bench`: every link policy measured on your own passages and machine, against full prefill."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epicrag.cli.common import Common, path
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.output import SCHEMA_VERSION, Output, count, table
from epicrag.cli.progress import reporter
from epicrag.cli.scratch import scratch
from epicrag.errors import UsageError

if TYPE_CHECKING:
    from epicrag.bench import Options, Report, Row


def bench(
    common: Common,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            help="Ask these: one a line, .tsv, or .jsonl that may bring documents of its own.",
            metavar="FILE",
            parser=path,
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option("--policies", help='Link policies, as in "none,legolink(16)@isolated".'),
    ] = None,
    compile_mode: Annotated[
        str | None, typer.Option("--compile", help="Compile mode where a policy names none.")
    ] = None,
    prompts: Annotated[
        int | None, typer.Option("--prompts", min=1, help="Prompts to measure on.")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option("--chunks", min=1, help="Passages in a prompt at most.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option("--prompt-tokens", min=1, help="Tokens of passages in a prompt.")
    ] = None,
    answer_tokens: Annotated[
        int | None, typer.Option("--answer-tokens", min=1, help="Tokens of an answer at most.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option("--runs", min=1, help="Measure each prompt in so many orders.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=0, help="Requests side by side; 0 leaves them out."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same draws the same prompts.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="One small prompt, five policies: a first look.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw quality against cost.", metavar="FILE", parser=path),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Keep the result as JSON.", metavar="FILE", parser=path),
    ] = None,
) -> int:
    """Measure link policies on shuffled prompts from the index, or from a file of questions.

    Time to first token, throughput, what is computed again, and how far the answers are from full prefill.
    What it compiles is thrown away afterwards: the index stays as it is.
    """
    from epicrag import plot as drawing
    from epicrag.bench import QUICK, Options, run, split_names
    from epicrag.questions import read_items

    for target in (plot, save):
        _refuse_unwritable(target)
    if plot:
        drawing.check()
    given: dict[str, Any] = {
        "policies": None if policies is None else split_names(policies),
        "prompts": prompts,
        "runs": runs,
        "answer_tokens": answer_tokens,
        "concurrency": concurrency,
        "seed": seed,
    }
    options = replace(
        _sized(QUICK if quick else Options(), prompt_tokens, chunks),
        **{name: value for name, value in given.items() if value is not None},
    )
    items = read_items(questions) if questions else []
    needs_index = not items or not all(item.documents for item in items)
    out = common.output
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(common.load().home))
        pipeline = stack.enter_context(
            common.open(create=not needs_index, kv_folder=folder, compile=compile_mode)
        )
        with reporter(out) as report:
            result = run(pipeline, items, options, report)
    _show(out, result)
    if save:
        _save(result, save)
    if plot and any(row.compile and row.kl is not None for row in result.rows):
        drawing.draw(result, plot)
        out.note(f"plot: {plot}")
    if result.interrupted:
        out.note("interrupted: this is what was measured by then")
        return INTERRUPTED
    return 0


def _sized(options: Options, tokens: int | None, chunks: int | None) -> Options:
    own = options.size
    size = replace(own, chunks=chunks or own.chunks, tokens=tokens or own.tokens)
    return replace(options, size=size)


def _refuse_unwritable(target: Path | None) -> None:
    """Say it before minutes of work, not after."""
    if target is None:
        return
    folder = target.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "make it first")
    if target.is_dir():
        raise UsageError(f"{target} is a folder", "name a file in it")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise UsageError(f"{target} cannot be written", "name another file")


def _save(report: Report, target: Path) -> None:
    from json import dumps

    value = {"schema_version": SCHEMA_VERSION, **report_json(report)}
    try:
        target.write_text(dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error


def report_json(report: Report) -> dict[str, object]:
    """The shape of `bench --json`: fields may be added, never renamed."""
    return {
        "model": report.setup["model"],
        "device": report.setup["device"],
        "prompt_tokens": report.prompt_tokens,
        "rows": [asdict(row) for row in report.rows],
        "setup": report.setup,
        "interrupted": report.interrupted,
        "not_reached": report.not_reached,
    }


def _show(out: Output, report: Report) -> None:
    if out.is_machine:
        out.object(report_json(report))
        return
    for line in setup_lines(report):
        out.text(line)
    if report.rows:
        for line in ("", *speed_table(report.rows), "", *cost_table(report.rows)):
            out.text(line)
        out.note("\n" + "\n".join(LEGEND))
    if report.not_reached:
        planned = report.setup["planned_policies"]
        names = ", ".join(report.not_reached)
        out.note(f"not reached, of {planned} policies: {names}")
    refused = sum(row.refused_requests for row in report.rows)
    if refused:
        out.note(f"note: {refused} requests under load were refused for want of KV memory")


FEW = 4
"""Prompts below which a 95th percentile, or a worst tenth, says nothing that the median does not."""
LEGEND = (
    f"n: measurements, one a prompt and order. p95 and worst: from {FEW} on; of few they are the worst.",
    "TTFT: wall time to the first token, chunks in memory; load: bringing them there from disk, once.",
    "req/s: requests side by side. pays at: the use of a passage at which compiling it has paid.",
    "reused: of what prefix caching had to compute. charged: share of the context computed again.",
    "KL to full prefill per answer token, in nats; worst: mean of the worst tenth of the prompts.",
)


def setup_lines(report: Report) -> list[str]:
    """On what it was measured."""
    s = report.setup
    source = "documents of the question file" if s["index"] is None else f"index {s['index']}"
    asked = (
        f"a file of {count(int(s['questions']), 'question')}"
        if s["questions"]
        else "random passages"
    )
    machine = f"{s['processor']}, {s['cores']} cores, {s['threads']} threads, {s['system']}"
    prompts, runs = _of(s, "prompts", "prompt"), _of(s, "runs", "order")
    size = f": {s['chunks_per_prompt']:g} passages of {s['chunk_tokens']}" if report.rows else ""
    tokens = "" if report.prompt_tokens is None else f", {report.prompt_tokens:,} tokens"
    measured = f"{prompts} x {runs}{tokens}{size}; seed {s['seed']}"
    forced = f"forced for KL: {s['forced']}, {s['answer_tokens']} tokens at most"
    versions = f"epicrag {s['epicrag']}, torch {s['torch']}, transformers {s['transformers']}"
    return [
        f"{s['model']} ({s['fingerprint']}), {s['dtype']} on {s['device']}: {machine}",
        f"{source}, {asked}; {measured}",
        f"{forced}; {s['concurrency']} requests side by side; {versions}, Python {s['python']}",
    ]


def _of(setup: dict[str, Any], name: str, word: str) -> str:
    """ "4 prompts", or "1 of 4 prompts" where an interrupt left the others unmeasured."""
    done, planned = setup[name], setup[f"planned_{name}"]
    return count(planned, word) if done == planned else f"{done} of {count(planned, word)}"


def speed_table(rows: Sequence[Row]) -> list[str]:
    head = (
        "policy",
        "compiled",
        "n",
        "TTFT ms",
        "p95",
        "vs full",
        "load ms",
        "decode tok/s",
        "req/s",
    )
    return table(
        (*head, "pays at"),
        [
            (
                row.policy,
                row.compile or "-",
                str(row.points),
                f"{row.ttft_ms.median:,.0f}",
                _number(row.ttft_ms.p95 if row.points >= FEW else None, "{:,.0f}"),
                _number(row.speedup, "{:.1f}x"),
                _number(row.load_ms, "{:,.1f}"),
                _number(row.decode_tokens_per_s, "{:.1f}"),
                _number(row.requests_per_s, "{:.2f}"),
                pays_at(row.break_even),
            )
            for row in rows
        ],
    )


def cost_table(rows: Sequence[Row]) -> list[str]:
    head = ("policy", "compiled", "n", "reused", "recomputed", "charged")
    return table(
        (*head, "KL mean", "median", "worst", "top-1"),
        [
            (
                row.policy,
                row.compile or "-",
                str(row.points),
                _number(row.non_prefix_hit_rate, "{:.1%}"),
                f"{row.recomputed_tokens:,.0f}",
                f"{row.charged_share:.1%}",
                _number(row.kl, "{:.4f}"),
                _number(row.kl_median, "{:.4f}"),
                _number(row.kl_worst_decile if row.points >= FEW else None, "{:.3f}"),
                _number(row.top1, "{:.1%}"),
            )
            for row in rows
        ],
    )


def pays_at(uses: float | None) -> str:
    """The use at which it has paid, counted from one: "1st use" for half a use."""
    if uses is None:
        return "-"
    n = max(1, ceil(uses))
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending} use"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
