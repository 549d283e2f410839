"""`epicrag eval`: answers scored against right ones, with reuse and without."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epicrag.cli.common import Common, CompileMode, path
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.output import Output, count, table
from epicrag.cli.progress import reporter
from epicrag.cli.scratch import scratch
from epicrag.errors import BelowError

if TYPE_CHECKING:
    from epicrag.evaluate import Pair, Result, Scored

NAMES = {
    "em": "EM",
    "f1": "F1",
    "rouge_l": "ROUGE-L",
    "contains": "contains",
    "citation": "citation",
    "source": "source",
    "abstention": "abstention",
}

FEW = 20
"""Questions below which bootstrap intervals are too narrow, or as wide as all there is."""


def evaluate(
    common: Common,
    gold: Annotated[
        Path,
        typer.Argument(
            help='JSON lines of {"question", "answers", "path", "answerable", "documents"}; '
            '"answer": "…" is "answers": ["…"].',
            metavar="GOLD",
            parser=path,
        ),
    ],
    policy: Annotated[
        str | None, typer.Option("--policy", help="The link policy to hold against full prefill.")
    ] = None,
    compile_mode: CompileMode = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-k", min=1, help="Passages to put before the model.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")
    ] = 64,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Abstain when no passage scores this much.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first so many questions.")
    ] = None,
    fail_under: Annotated[
        str | None,
        typer.Option("--fail-under", help="Exit 11 where reuse scores less: F1=0.4,contains=0.6 …"),
    ] = None,
    show_worst: Annotated[
        int, typer.Option("--show-worst", min=0, help="Print the answers with the least F1.")
    ] = 0,
) -> int:
    """Score answers to questions whose answers are known, with reuse and without, on the same passages."""
    from epicrag.evaluate import check_items, parse_least
    from epicrag.evaluate import evaluate as run
    from epicrag.questions import read_items

    out = common.output
    least = {} if fail_under is None else parse_least(fail_under)
    items = read_items(gold)
    check_items(items)
    chosen = items[:limit]
    settings: dict[str, Any] = {
        "link_policy": policy,
        "compile": compile_mode,
        "top_k": top_k,
        "max_tokens": max_tokens,
        "min_score": min_score,
    }
    brings = [bool(item.documents) for item in chosen]
    with ExitStack() as stack:
        # Documents that come with the questions are none of the index: nor is their KV.
        folder = stack.enter_context(scratch(common.load().home)) if any(brings) else None
        pipeline = stack.enter_context(
            common.open(create=all(brings), kv_folder=folder, **settings)
        )
        with reporter(out) as report:
            result = run(pipeline, chosen, report, lambda pair: _show_pair(out, pair))
    _show(out, result, gold, show_worst)
    if result.interrupted:
        out.note("interrupted: these are the answers by then")
        return INTERRUPTED
    return _judge(out, result, least)


def _show_pair(out: Output, pair: Pair) -> None:
    if out.jsonl:
        out.object(pair_json(pair))


def pair_json(pair: Pair) -> dict[str, object]:
    """One question of `eval --jsonl`: fields may be added, never renamed."""
    item = pair.item
    return {
        "line": item.line,
        "question": item.question,
        "answers": item.answers,
        "answerable": item.answerable,
        "reuse": asdict(pair.reuse),
        "full": asdict(pair.full),
    }


def result_json(result: Result) -> dict[str, object]:
    """The shape of `eval --json`: fields may be added, never renamed."""
    columns = {name: asdict(found) if found else None for name, found in result.columns.items()}
    return {
        "policy": result.policy,
        "compile": result.compile,
        "questions": len(result.pairs),
        "scores": columns,
        "setup": result.setup,
        "interrupted": result.interrupted,
        "unknown_paths": [
            {"line": item.line, "question": item.question, "paths": item.paths}
            for item in result.unknown
        ],
    }


def _show(out: Output, result: Result, gold: Path, worst: int) -> None:
    _show_result(out, result, gold, worst)
    n, unknown = len(result.pairs), len(result.unknown)
    if unknown:
        verb = "names" if unknown == 1 else "name"
        out.note(
            f"note: {count(unknown, 'line')} {verb} no document that is there: "
            "left out of citation and source"
        )
    if n < FEW:
        out.note(f"note: {count(n, 'question')}: with fewer than {FEW}, the intervals say little")


def _show_result(out: Output, result: Result, gold: Path, worst: int) -> None:
    if out.is_machine:
        out.object(result_json(result))
        return
    for line in lines(result, gold):
        out.text(line)
    for pair in sorted(result.pairs, key=_f1)[:worst]:
        _show_worst(out, pair)


def lines(result: Result, gold: Path) -> list[str]:
    """The table, and on what it was measured."""
    s = result.setup
    head = f"{gold}: {count(len(result.pairs), 'question')}; {s['model']}, {s['dtype']} on {s['device']}"
    rows = []
    for name, column in result.columns.items():
        if column is None:
            rows.append((NAMES[name], "-", "-", "-", "-", "-", "0"))
            continue
        means = (column.reuse, column.full, column.difference)
        cells = [(f"{m.mean:.3f}", f"[{m.low:.3f}, {m.high:.3f}]") for m in means]
        (reuse, spread), (full, other), (change, _) = cells
        rows.append(
            (
                NAMES[name],
                reuse,
                spread,
                full,
                other,
                _signed(change, means[2].mean),
                str(means[0].n),
            )
        )
    columns = ("", f"{result.policy}", "95 %", "full", "95 %", "difference", "n")
    return [f"{head}, {s['top_k']} passages, compile {result.compile}", "", *table(columns, rows)]


def _signed(text: str, value: float) -> str:
    return f"+{text}" if value > 0 else text


def _f1(pair: Pair) -> float:
    score = pair.reuse.scores["f1"]
    return 2.0 if score is None else score  # nothing to judge: last


def _show_worst(out: Output, pair: Pair) -> None:
    out.note(f"\nline {pair.item.line}: {pair.item.question}")
    out.note(f"  right: {' | '.join(pair.item.answers) or '(no answer)'}")
    for name, scored in (("reuse", pair.reuse), ("full", pair.full)):
        out.note(f"  {name}: {_score(scored)} {' '.join(scored.answer.split())}")


def _score(scored: Scored) -> str:
    value = scored.scores["f1"]
    return "" if value is None else f"({value:.2f})"


def _judge(out: Output, result: Result, least: dict[str, float]) -> int:
    below = result.below(least)
    for name, mean in below.items():
        out.note(f"{NAMES[name]} is {mean:.3f} with reuse, and should be at least {least[name]:g}")
    return BelowError.exit_code if below else 0
