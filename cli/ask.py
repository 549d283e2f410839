"""`epicrag ask`: a question to an answer with its sources, and its receipt when asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from epicrag.cli import look
from epicrag.cli.common import (
    Common,
    CompileMode,
    LinkPolicy,
    MaxTokens,
    Quantize,
    Seed,
    ShowTiming,
    Strict,
    Temperature,
    TopK,
)
from epicrag.cli.output import Output, line_of
from epicrag.cli.reach import Face, NoServer, is_beside, reach
from epicrag.passages import remember
from epicrag.types import Answer, Hit, Receipt

if TYPE_CHECKING:
    from epicrag.pipeline import AnswerStream


def ask(
    common: Common,
    question: Annotated[str, typer.Argument(help="The question, or - to read it from stdin.")],
    top_k: TopK = None,
    link_policy: LinkPolicy = None,
    compile_mode: CompileMode = None,
    quantize: Quantize = None,
    show_chunks: Annotated[
        bool, typer.Option("--show-chunks", help="Print the passages, as the model reads them.")
    ] = False,
    show_timing: ShowTiming = False,
    strict: Strict = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Nucleus sampling; 1 is off.")] = 1.0,
    top_k_tokens: Annotated[
        int, typer.Option("--top-k-tokens", min=0, help="Sample among so many tokens; 0 is off.")
    ] = 0,
    seed: Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End the answer here; may be repeated.")
    ] = None,
    min_score: look.MinScore = None,
    filter: look.Filter = None,
    mode: look.Mode = None,
    weights: look.Weights = None,
    rerank: look.Rerank = None,
    no_rerank: look.NoRerank = False,
    explain: look.Explain = False,
    shuffle_seed: Annotated[
        int | None, typer.Option("--shuffle-seed", help="Put the passages in a random order.")
    ] = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the answer when it is complete.")
    ] = False,
    no_server: NoServer = False,
) -> int:
    """Answer a question from the documents in the index."""
    out = common.output
    question = _question(question)
    # Under --strict nothing is shown before it is known whether the documents say so.
    whole = no_stream or strict
    settings = {
        "link_policy": link_policy,
        "compile": compile_mode,
        "quantize": quantize,
        "max_tokens": max_tokens,
        **look.settings(mode, weights, rerank, no_rerank, min_score=min_score),
    }

    def answered(face: Face) -> tuple[Answer, list[str]]:
        stream = face.stream(
            question,
            k=top_k,
            sampling=face.sampling(
                temperature=temperature,
                top_p=top_p,
                top_k=top_k_tokens,
                seed=seed,
                stop=tuple(stop or ()),
            ),
            strict=strict,
            shuffle_seed=shuffle_seed,
            filter=filter,
        )
        if explain and not out.is_machine:
            look.explain(out, stream.hits, stream.relevance)
        if show_chunks and not out.is_machine:
            _show_chunks(out, stream.hits)
        answer = _show(out, stream, whole=whole)
        if is_beside(face):
            remember(face, answer.sources)
        return answer, stream.notes

    answer, notes = reach(
        common,
        answered,
        no_server=no_server,
        settings=settings,
        is_whole=whole or (out.json and not out.jsonl),
    )
    if not out.is_machine:
        show_sources(out, answer)
    for note in notes:
        out.note(f"note: {note}")
    if show_timing and answer.receipt and not out.is_machine:
        out.note(receipt_line(answer.receipt))
    return 0


def _question(text: str) -> str:
    """Return the question; `-` is read from stdin, as UTF-8 whatever the locale says."""
    return sys.stdin.buffer.read().decode("utf-8", "replace").strip() if text == "-" else text


def _show(out: Output, stream: AnswerStream, *, whole: bool) -> Answer:
    """Print the answer: as JSON, whole, or as it comes. Whatever ends it early stops the model."""
    with stream:
        if out.jsonl and not whole:
            for delta in stream:
                out.object({"delta": delta})
        elif not out.is_machine and not whole:
            print_deltas(out, stream)
        answer = stream.finish()
    if out.is_machine:
        out.object(answer_json(answer, stream.notes))
    elif whole:
        out.text(answer.text)
    return answer


def print_deltas(out: Output, stream: AnswerStream) -> None:
    """Print an answer as it comes, and end its line however it ends."""
    begun = False
    try:
        for delta in stream:
            out.text(delta, end="")
            begun = True
    finally:
        if begun:
            out.text("")


def _show_chunks(out: Output, hits: tuple[Hit, ...]) -> None:
    for n, hit in enumerate(hits, 1):
        chunk = hit.chunk
        place = out.place(chunk.document, chunk.place)
        out.linked_note(f"--- [{n}] ", place, f" · score {hit.score:.3f} · {chunk.n_tokens} tokens")
        out.note(chunk.model_text.rstrip())
    out.note("---")


def show_sources(out: Output, answer: Answer, *, whole: bool = False) -> None:
    """List the cited passages; all that were read, where none is cited, or `whole` or -v asks for it."""
    cited = [source for source in answer.sources if source.cited]
    listed = answer.sources if whole or out.verbose or not cited else cited
    if listed:
        out.note("\nSources:" if cited else "\nRead, but not cited:")
    for source in listed:
        heading = f" · {line_of(source.heading)}" if source.heading else ""
        place = out.place(source.path, source)
        out.linked_note(f"[{source.n}] ", place, heading)


def answer_json(answer: Answer, notes: list[str]) -> dict[str, object]:
    """The shape of `ask --json`: fields may be added, never renamed."""
    return {
        "question": answer.question,
        "answer": answer.text,
        "answered": answer.answered,
        "grounded": answer.grounded,
        "sources": [asdict(source) for source in answer.sources],
        "receipt": receipt_json(answer.receipt) if answer.receipt else None,
        "usage": asdict(answer.usage),
        "model": answer.model,
        "notes": notes,
        "relevance": look.relevance_json(answer.relevance),
    }


def receipt_json(receipt: Receipt) -> dict[str, object]:
    values = asdict(receipt)
    return {**values, "ms": {stage: round(ms, 3) for stage, ms in values["ms"].items()}}


def receipt_line(receipt: Receipt) -> str:
    """What an answer cost, on one line."""
    reused, ms = receipt.exact + receipt.stitched, receipt.ms
    tokens = (
        f"reused {reused:,} of {receipt.context_tokens:,} context tokens (exact {receipt.exact:,}, "
        f"stitched {receipt.stitched:,}), recomputed {receipt.recomputed:,}, fresh {receipt.fresh:,}"
    )
    if receipt.charged * receipt.context_tokens > receipt.recomputed + 0.5:
        tokens += f", with the choosing charged as {receipt.charged:.1%}"
    stages = ("retrieve", "wait", "load", "stitch", "select", "link", "first_token")
    times = [
        f"{stage.replace('_', ' ')} {_ms(getattr(ms, stage))}"
        for stage in stages
        if getattr(ms, stage) or stage not in ("wait", "select")
    ]
    fallback = f" · fell back: {receipt.fallback}" if receipt.fallback else ""
    return f"{tokens} · {', '.join(times)} · policy {receipt.policy}{fallback}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 1 or value == 0 else f"{value:.1f} ms"
