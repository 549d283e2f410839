"""The flags of looking for passages, shared by `search` and `ask`, and what `--explain` prints of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from epicrag.cli.output import Output
from epicrag.errors import UsageError
from epicrag.types import Hit, Relevance

STAGES = ("dense", "words", "fused", "rerank")

Filter = Annotated[
    str | None,
    typer.Option("--filter", help="Only passages that fit, as 'year>=2020 and path~\"manual/*\"'."),
]
Mode = Annotated[str | None, typer.Option("--mode", help="hybrid, dense or words.")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="What each ranking counts: dense=1,words=1.")
]
Rerank = Annotated[
    str | None,
    typer.Option("--rerank", help="Cross-encoder that reads the first passages: a name or a path."),
]
NoRerank = Annotated[bool, typer.Option("--no-rerank", help="Leave the configured reranker out.")]
MinScore = Annotated[
    str | None,
    typer.Option("--min-score", help="auto, or the cosine that the best passage must have."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show what each stage of the search made of it.")
]


def settings(
    mode: str | None, weights: str | None, rerank: str | None, no_rerank: bool, **more: Any
) -> dict[str, Any]:
    """Return the flags as settings; UsageError where two contradict each other."""
    if rerank and no_rerank:
        raise UsageError("--rerank and --no-rerank contradict each other", "give one of them")
    return {
        "search_mode": mode,
        "hybrid_weights": weights,
        "rerank_model": "none" if no_rerank else rerank,
        **more,
    }


def stages_line(hit: Hit) -> str:
    """Ranks and scores of one hit, stage by stage."""
    found = [
        f"{name} #{stage.rank} ({stage.score:.4g})"
        for name in STAGES
        if (stage := hit.stages.get(name))
    ]
    return " · ".join([f"cosine {hit.score:.3f}", *found])


def stages_json(hit: Hit) -> dict[str, object]:
    return {name: {"rank": stage.rank, "score": stage.score} for name, stage in hit.stages.items()}


def relevance_json(relevance: Relevance | None) -> dict[str, object] | None:
    if relevance is None:
        return None
    return {
        "relevant": relevance.is_relevant,
        "score": relevance.score,
        "threshold": relevance.threshold,
        "rule": relevance.rule,
        "features": dict(relevance.features),
        "reason": relevance.reason,
    }


def explain(out: Output, hits: tuple[Hit, ...], relevance: Relevance | None) -> None:
    """Tell, on stderr, how each hit came to its rank, and whether they count as relevant."""
    for rank, hit in enumerate(hits, 1):
        out.note(f"{rank:>2}. {stages_line(hit)}")
    if relevance:
        out.note(relevance_line(relevance))


def relevance_line(relevance: Relevance) -> str:
    verdict = "relevant" if relevance.is_relevant else "not relevant"
    features = ", ".join(f"{name} {value:.3g}" for name, value in relevance.features.items())
    return (
        f"{verdict}: {relevance.score:.3f} against {relevance.threshold:.3f}"
        f" ({relevance.rule}{': ' + features if features else ''}); {relevance.reason}"
    )
