"""Answers scored against right ones, with reuse and without, question by question."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from epicrag.draw import documents_of, passage_name
from epicrag.errors import UsageError
from epicrag.ingest import Event, Progress
from epicrag.machine import describe
from epicrag.questions import Item
from epicrag.scores import Mean, contains, exact_match, f1, holds, mean_of, rouge_l, words

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline
    from epicrag.types import Answer, Hit

METRICS = ("em", "f1", "rouge_l", "contains", "citation", "source", "abstention")
"""Exact match, F1 and ROUGE-L of the text; whether a right answer stands in it; whether a cited passage, or any that was read, is a right one;
whether it was right to answer, or to abstain."""
REFERENCE = "full"
NOTES = 5
"""Lines that are named one by one, where many have the same fault."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One answer and its scores, by metric: None where there is nothing to judge."""

    answer: str
    abstained: bool
    """What `ask --strict` would refuse: nothing relevant was found, or no passage says the answer."""
    scores: dict[str, float | None]
    first_token_ms: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A question answered twice over the same passages."""

    item: Item
    reuse: Scored
    full: Scored


@dataclass(frozen=True, slots=True)
class Column:
    """The means of one metric; `difference` is reuse minus full, item by item."""

    reuse: Mean
    full: Mean
    difference: Mean


@dataclass(frozen=True, slots=True)
class Result:
    policy: str
    compile: str
    pairs: tuple[Pair, ...]
    columns: dict[str, Column | None] = field(default_factory=dict)
    setup: dict[str, str | int] = field(default_factory=dict)
    interrupted: bool = False
    unknown: tuple[Item, ...] = ()
    """Of the questions asked, those whose documents are unknown: not scored for citation and source."""

    def below(self, least: dict[str, float]) -> dict[str, float]:
        """Metrics whose mean with reuse is less than it must be, or that nothing was judged by (NaN)."""
        found = {name: self.columns.get(name) for name in least}
        means = {
            name: column.reuse.mean if column else float("nan") for name, column in found.items()
        }
        return {name: mean for name, mean in means.items() if not mean >= least[name]}


def check_items(items: Sequence[Item]) -> None:
    """UsageError for the first line that cannot be scored."""
    for item in items:
        if item.answerable and not item.answers:
            raise UsageError(
                f"{item.where}: no answers to {item.question[:80]!r}",
                'add "answers": ["…"], or "answerable": false',
            )
        for answer in item.answers:
            if not words(answer):
                raise UsageError(
                    f"{item.where}: the answer {answer[:80]!r} has no word that counts",
                    "articles and punctuation are not scored: give what else is right",
                )


def parse_least(text: str) -> dict[str, float]:
    """Read `F1=0.4,EM=0.2`: metrics with the least mean that each must have."""
    least = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        key = name.strip().lower().replace("-", "_")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if key not in METRICS or not 0 <= value <= 1 or key in least:
            raise UsageError(
                f"cannot fail under {part.strip()!r}",
                f"write metric=number, from 0 to 1, each once; metrics are {', '.join(METRICS)}",
            )
        least[key] = value
    return least


def evaluate(
    pipeline: Pipeline,
    items: Sequence[Item],
    progress: Progress = lambda event: None,
    each: Callable[[Pair], None] = lambda pair: None,
) -> Result:
    """Ask every question under the configured policy and under full prefill; `each` is told as it goes.

    Ctrl-C ends it early, with the pairs so far. UsageError: a line that cannot be scored.
    """
    from epicrag.serving.policies import parse_policy

    check_items(items)
    unknown = _unknown(pipeline, items, progress)
    pairs: list[Pair] = []
    interrupted = False
    progress(Event("doing", message=f"loading the model {pipeline.config.model}"))
    _ = pipeline.engine
    progress(Event("doing", message=f"question 1 of {len(items)}, with reuse and without"))
    begun = time.monotonic()
    try:
        for number, item in enumerate(items, 1):
            pairs.append(_pair(pipeline, item, judged=item not in unknown))
            each(pairs[-1])
            seconds = time.monotonic() - begun
            if number == 1 < len(items):
                progress(Event("note", message=_estimate(seconds, len(items))))
            progress(Event("eval", number, len(items), seconds=seconds))
    except KeyboardInterrupt:
        interrupted = True
    policy = parse_policy(pipeline.config.link_policy).name
    columns = {name: _column(pairs, name) for name in METRICS}
    return Result(
        policy,
        pipeline.engine.compile_mode,
        tuple(pairs),
        columns,
        _setup(pipeline),
        interrupted,
        tuple(pair.item for pair in pairs if pair.item in unknown),
    )


def _estimate(first: float, n: int) -> str:
    seconds = first * (n - 1)
    left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
    return f"by the first, {n - 1} more take about {left}; Ctrl-C prints what is scored by then"


def _unknown(pipeline: Pipeline, items: Sequence[Item], progress: Progress) -> set[Item]:
    """Say which lines name documents that are not there; return those that name no other."""
    named = [item for item in items if item.paths and item.answerable]
    ends: set[tuple[str, ...]] = set()
    if not all(item.documents for item in named):
        ends = _ends(document.path for document in pipeline.catalog.documents())
    unknown, notes = set(), []
    for item in named:
        names = [passage_name(each, n) for n, each in enumerate(item.documents, 1)]
        known = _ends(names) if item.documents else ends
        missing = [path for path in item.paths if PurePosixPath(path).parts not in known]
        place = "its own documents" if item.documents else "the index"
        notes += [f"{item.where}: no document of {place} is called {path}" for path in missing]
        if len(missing) == len(item.paths):
            unknown.add(item)
    for note in notes[:NOTES]:
        progress(Event("note", message=note))
    if len(notes) > NOTES:
        progress(Event("note", message=f"… and {len(notes) - NOTES} more that are not there"))
    return unknown


def _ends(paths: Iterable[str]) -> set[tuple[str, ...]]:
    """All that `_ends_with` would find some path to end with."""
    parts = [PurePosixPath(path).parts for path in paths]
    return {whole[at:] for whole in parts for at in range(len(whole))}


def _setup(pipeline: Pipeline) -> dict[str, str | int]:
    config = pipeline.config
    return {
        **describe(pipeline.engine),
        "index": str(config.index),
        "embed_model": config.embed_model,
        "top_k": config.top_k,
        "max_tokens": config.max_tokens,
    }


def _pair(pipeline: Pipeline, item: Item, *, judged: bool) -> Pair:
    """Answer an item twice; unless `judged`, whether a right passage was read is not scored."""
    own = documents_of(item, pipeline.counter, pipeline.config.chunk_tokens) or None
    policies = pipeline.config.link_policy, REFERENCE
    try:
        found = [_scored(pipeline, item, own, policy) for policy in policies]
    except UsageError as error:
        if type(error) is not UsageError:  # of the index or the model, whatever is asked
            raise
        raise UsageError(f"{item.where}: {error.message}", error.hint) from error
    if not judged:
        none = {"citation": None, "source": None}
        found = [replace(one, scores={**one.scores, **none}) for one in found]
    reuse, full = found
    return Pair(item, reuse, full)


def _scored(pipeline: Pipeline, item: Item, own: Sequence[Hit] | None, policy: str) -> Scored:
    stream = pipeline.stream(item.question, policy=policy, chunks=own)
    answer = stream.finish()
    first = answer.receipt.ms.first_token if answer.receipt else None
    text = answer.text if answer.answered else ""
    return Scored(answer.text, abstained(answer), score(item, text, answer, stream.hits), first)


def abstained(answer: Answer) -> bool:
    return not (answer.answered and answer.grounded)


def score(item: Item, text: str, answer: Answer, hits: Sequence[Hit]) -> dict[str, float | None]:
    """Judge an answer. What cannot be answered is judged by abstention alone."""
    right = abstained(answer) != item.answerable
    if not item.answerable:
        return {**dict.fromkeys(METRICS), "abstention": float(right)}
    read = {source.n: source for source in answer.sources}
    good = {n for n, hit in enumerate(hits, 1) if n in read and is_right(item, hit)}
    return {
        "em": exact_match(text, item.answers),
        "f1": f1(text, item.answers),
        "rouge_l": rouge_l(text, item.answers),
        "contains": contains(text, item.answers),
        "citation": float(any(read[n].cited for n in good)),
        "source": float(bool(good)),
        "abstention": float(right),
    }


def is_right(item: Item, hit: Hit) -> bool:
    """Whether a passage is of an expected document, or says an answer."""
    return any(_ends_with(hit.chunk.document, path) for path in item.paths) or holds(
        hit.chunk.text, item.answers
    )


def _ends_with(path: str, expected: str) -> bool:
    """Whether a path ends with another, part by part: `docs/a.md` with `a.md`, and not `data.md`."""
    whole, end = PurePosixPath(path).parts, PurePosixPath(expected).parts
    return bool(end) and whole[-len(end) :] == end


def _column(pairs: Sequence[Pair], name: str) -> Column | None:
    both = [(pair.reuse.scores[name], pair.full.scores[name]) for pair in pairs]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    reuse, full = mean_of([a for a, _ in known]), mean_of([b for _, b in known])
    difference = mean_of([a - b for a, b in known])
    return Column(reuse, full, difference) if reuse and full and difference else None
