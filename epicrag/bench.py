"""Link policies against full prefill, on the same shuffled prompts, in turns, within one run.

What is compiled here is kept apart from the index, which stays as it is. Nothing is simulated: every figure of a
`Row` is of requests that ran.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from epicrag.draw import Draw, Size, draw
from epicrag.errors import UsageError
from epicrag.ingest import Event, Progress
from epicrag.machine import describe
from epicrag.measure import (
    Load,
    Timed,
    Variant,
    divergence,
    forced,
    load,
    side_by_side,
    timed,
)
from epicrag.questions import Item

if TYPE_CHECKING:
    from torch import Tensor

    from epicrag.pipeline import Pipeline
    from epicrag.serving.engine import Engine
    from epicrag.serving.prompt import Prompt

ALWAYS = ("full", "prefix")
"""What every run measures: the reference, and what prefix caching makes of the same prompts."""
USUAL = ("none@isolated", "legolink(16)@isolated", "none", "legolink(16)")
"""What it measures besides, unless told otherwise; the configured policy comes last."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    policies: tuple[str, ...] = ()
    """Policies, each with `@mode` where it is not to be the configured compile mode; () for the usual."""
    prompts: int = 4
    runs: int = 1
    """Times that each prompt is measured, in a new order each time."""
    size: Size = field(default_factory=Size)
    answer_tokens: int = 24
    concurrency: int = 8
    """Requests side by side in the throughput part, of as many requests; 0 leaves it out."""
    seed: int = 0


QUICK = Options(prompts=2, size=Size(tokens=1000), answer_tokens=12, concurrency=4)


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Row:
    """One policy and compile mode. None where it was not measured, or has no meaning."""

    policy: str
    compile: str
    points: int
    """Shuffled prompts it was measured on."""
    non_prefix_hit_rate: float | None
    """Of the context tokens that prefix caching had to compute, the share that was reused."""
    ttft_ms: Spread
    """Wall time to the first token, chunks in memory."""
    speedup: float | None
    """Full prefill's time over this one's: the median of the ratios, prompt by prompt."""
    load_ms: float | None
    """Median time that bringing a prompt's chunks from disk took, the first time."""
    recomputed_tokens: float
    charged_share: float
    decode_tokens_per_s: float | None
    requests_per_s: float | None
    loaded_ttft_ms: Spread | None
    """Time to the first token under that load."""
    refused_requests: int
    kl: float | None
    """Mean over prompts of the mean KL per answer token to full prefill, in nats."""
    kl_median: float | None
    kl_worst_decile: float | None
    """Mean of the worst tenth of the prompts, of one at least."""
    top1: float | None
    """Share of answer tokens whose most likely token is that of full prefill."""
    compile_ms: float | None
    """What compiling the chunks of a prompt took: its median size at the speed measured."""
    break_even: float | None
    """Uses of the chunks after which compiling them has paid; None where it never does."""


@dataclass(frozen=True, slots=True)
class Report:
    rows: tuple[Row, ...]
    setup: dict[str, str | int | float | None]
    """On what it was measured."""
    prompt_tokens: int
    """Median over the prompts."""
    interrupted: bool = False


@dataclass(slots=True)
class _Measured:
    """All that one variant has shown so far, each list by the number of the shuffled prompt."""

    timed: dict[int, Timed] = field(default_factory=dict)
    fidelity: dict[int, tuple[float, float]] = field(default_factory=dict)
    load: Load | None = None


@dataclass(slots=True)
class _Compiled:
    """What compiling in one mode took."""

    ms: float = 0.0
    tokens: int = 0
    load_ms: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """A bench under way."""

    engine: Engine
    draws: list[Draw]
    prompts: list[Prompt]
    """The draws, shuffled anew for each repetition."""
    variants: list[Variant]
    options: Options
    measured: dict[Variant, _Measured]
    compiled: dict[str, _Compiled]
    tick: Callable[[int], None]


def run(
    pipeline: Pipeline,
    items: Sequence[Item] = (),
    options: Options | None = None,
    progress: Progress = lambda event: None,
) -> Report:
    """Measure every policy on prompts from `items`, or from the pipeline's index where there are none.

    Ctrl-C ends it early, with what was measured so far. UsageError: the model is refused for reuse, or the
    prompts do not fit its window. Give a pipeline whose KV is kept apart from the index (`kv_folder`).
    """
    options = options or Options()
    variants = variants_of(
        options.policies or (*USUAL, pipeline.config.link_policy), pipeline.config.compile
    )
    draws = draw(pipeline, items, options.prompts, options.size, options.seed)
    engine = pipeline.engine
    if engine.refusal:
        raise UsageError(f"there is nothing to compare: {engine.refusal}", "try another --model")
    prompts = _shuffled(pipeline, draws, options.runs, options.seed)
    _refuse_too_long(engine, prompts, options)
    state = _Run(
        engine,
        draws,
        prompts,
        variants,
        options,
        measured={variant: _Measured() for variant in variants},
        compiled={variant.mode: _Compiled() for variant in variants if variant.stitches},
        tick=lambda steps: None,
    )
    interrupted = False
    try:
        _begin(state, progress)
        _compile(state)
        _measure(state)
        _under_load(state)
    except KeyboardInterrupt:
        interrupted = True
    return _report(pipeline, state, items, interrupted)


# --- what is measured ----------------------------------------------------------------------------


def split_names(text: str) -> tuple[str, ...]:
    """Return the policies of a comma-separated list; commas inside of brackets part nothing."""
    return tuple(name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip())


def variants_of(names: Sequence[str], mode: str) -> list[Variant]:
    """Return what always is measured and these, each once. UsageError for a policy or a mode unknown."""
    from epicrag.serving.compile import check_mode
    from epicrag.serving.policies import parse_policy

    variants: dict[tuple[str, str], Variant] = {}
    for name in (*ALWAYS, *names):
        text, _, own = name.partition("@")
        policy = parse_policy(text)
        chosen = policy.compile_mode or check_mode(own.strip() or mode)
        reuses = policy.reuse == "chunks"
        # Full and prefix read no compiled chunks: a mode would only list them twice.
        variants.setdefault((policy.name, chosen if reuses else ""), Variant(policy, chosen))
    return list(variants.values())


def _shuffled(pipeline: Pipeline, draws: Sequence[Draw], runs: int, seed: int) -> list[Prompt]:
    rng = random.Random(seed)
    return [
        pipeline.prompt(drawn.question, rng.sample(drawn.hits, len(drawn.hits)))
        for _ in range(runs)
        for drawn in draws
    ]


def _refuse_too_long(engine: Engine, prompts: Sequence[Prompt], options: Options) -> None:
    for prompt in prompts:
        if engine.lay_out(prompt, options.answer_tokens).dropped:
            raise UsageError(
                f"{options.size.tokens:,} tokens of passages do not fit the window of {engine.name}, "
                f"which is {engine.context_window:,}",
                "lower --prompt-tokens",
            )


# --- the run -------------------------------------------------------------------------------------


def _begin(state: _Run, progress: Progress) -> None:
    """Touch every page of the model with one full prefill, and say from its time how long all will take."""
    first, full = state.prompts[0], state.variants[0]
    timed(state.engine, replace(first, pieces=()), full, 2)  # what is loaded at first use
    begun = time.perf_counter()
    timed(state.engine, first, full, 1)
    prefill = time.perf_counter() - begun
    n_points, n_requests = len(state.prompts), state.options.concurrency
    computing = sum(not variant.stitches for variant in state.variants)
    stitching = len(state.variants) - computing
    seconds = prefill * (
        n_points * (computing + 1 + 0.4 * stitching)
        + n_requests * (computing + 0.25 * stitching)
        + len(state.draws) * 1.5 * len(state.compiled)
    )
    points = f"{n_points} prompts under {len(state.variants)} policies"
    note = f"{points}: about {_minutes(seconds)}; Ctrl-C prints what is measured by then"
    progress(Event("note", message=note))
    total = len(state.compiled) + n_points * len(state.variants) + n_requests * len(state.variants)
    start = time.monotonic()
    done = 0

    def tick(steps: int) -> None:
        nonlocal done
        done += steps
        progress(Event("bench", done, total, seconds=time.monotonic() - start))

    state.tick = tick


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def _compile(state: _Run) -> None:
    """Compile the chunks of all prompts in each mode, and bring them into memory once, by the clock."""
    pieces = list(dict.fromkeys(piece for prompt in state.prompts for piece in prompt.pieces))
    for mode, compiled in state.compiled.items():
        begun = time.perf_counter()
        for _, _, n_tokens in state.engine.compile(pieces, mode):
            compiled.tokens += n_tokens
            compiled.ms = (time.perf_counter() - begun) * 1000
        state.tick(1)


def _measure(state: _Run) -> None:
    """Measure the prompts one by one, each under all policies before the next."""
    n_tokens = state.options.answer_tokens
    for number, prompt in enumerate(state.prompts):
        drawn = state.draws[number % len(state.draws)]
        gold = state.engine.tokenizer.ids(drawn.answer)[:n_tokens] if drawn.answer else None
        answer: Sequence[int] = ()
        want: Tensor | None = None
        for variant in state.variants:
            measured = state.measured[variant]
            if variant.stitches:
                state.compiled[variant.mode].load_ms.setdefault(
                    number, load(state.engine, prompt, variant)
                )
            measured.timed[number] = found = timed(state.engine, prompt, variant, n_tokens)
            # The first variant is full prefill: its own answer is the measure, unless there is a right one.
            answer = answer or gold or found.token_ids
            got = forced(state.engine, prompt, variant, answer)
            want = got if want is None else want
            measured.fidelity[number] = divergence(want, got)
            state.tick(1)


def _under_load(state: _Run) -> None:
    """Ask side by side, the passages of each prompt in a new order."""
    threads = state.options.concurrency
    if not threads:
        return
    rng = random.Random(f"load {state.options.seed}")
    prompts = []
    for number in range(threads):
        prompt = state.prompts[number % len(state.prompts)]
        order = tuple(rng.sample(prompt.pieces, len(prompt.pieces)))
        prompts.append(replace(prompt, pieces=order))
    for variant in state.variants:
        state.measured[variant].load = side_by_side(
            state.engine, prompts, variant, state.options.answer_tokens, threads
        )
        state.tick(threads)


# --- what came out -------------------------------------------------------------------------------


def _report(pipeline: Pipeline, state: _Run, items: Sequence[Item], interrupted: bool) -> Report:
    rows = [_row(state, variant) for variant in state.variants if state.measured[variant].timed]
    chunk_tokens = [hit.chunk.n_tokens for drawn in state.draws for hit in drawn.hits]
    chunks = [float(len(drawn.hits)) for drawn in state.draws]
    known = [one.prompt_tokens for one in state.measured[state.variants[0]].timed.values()]
    gold = sum(drawn.answer is not None for drawn in state.draws)
    setup: dict[str, str | int | float | None] = {
        **describe(state.engine),
        "index": None if any(item.documents for item in items) else str(pipeline.config.index),
        "questions": len(items) or None,
        "prompts": len(state.draws),
        "runs": state.options.runs,
        "chunks_per_prompt": median(chunks),
        "chunk_tokens": round(median([float(n) for n in chunk_tokens])),
        "answer_tokens": state.options.answer_tokens,
        "forced": "the right answer" if gold == len(state.draws) else "what full prefill writes",
        "concurrency": state.options.concurrency,
        "seed": state.options.seed,
    }
    prompt_tokens = round(median([float(n) for n in known])) if known else 0
    return Report(tuple(rows), setup, prompt_tokens, interrupted)


def _row(state: _Run, variant: Variant) -> Row:
    measured = state.measured[variant]
    full, prefix = (state.measured[each].timed for each in state.variants[:2])
    found = measured.timed
    times = [one.first_token_ms for one in found.values()]
    hits = [_beyond_prefix(one, prefix[n]) for n, one in found.items() if n in prefix]
    ratios = [full[n].first_token_ms / one.first_token_ms for n, one in found.items() if n in full]
    decoded = sum(one.decode_tokens for one in found.values())
    kl = sorted((kl for kl, _ in measured.fidelity.values()), reverse=True)
    worst = kl[: math.ceil(len(kl) / 10)]
    compile_ms = _compile_ms(state, variant)
    saved = _median([full[n].first_token_ms - one.first_token_ms for n, one in found.items()])
    load = measured.load
    compiled = state.compiled.get(variant.mode) if variant.stitches else None
    return Row(
        policy=variant.name,
        compile=variant.mode if variant.stitches else "",
        points=len(found),
        non_prefix_hit_rate=_mean(hits),
        ttft_ms=_spread(times),
        speedup=_median(ratios),
        load_ms=_median(list(compiled.load_ms.values())) if compiled else None,
        recomputed_tokens=median([float(one.receipt.recomputed) for one in found.values()]),
        charged_share=sum(one.charged for one in found.values()) / len(found),
        decode_tokens_per_s=(
            decoded / sum(one.decode_ms for one in found.values()) * 1000 if decoded else None
        ),
        requests_per_s=load.per_second if load else None,
        loaded_ttft_ms=_spread(load.first_token_ms) if load and load.requests else None,
        refused_requests=load.refused if load else 0,
        kl=_mean(kl),
        kl_median=_median(kl),
        kl_worst_decile=_mean(worst),
        top1=_mean([same for _, same in measured.fidelity.values()]),
        compile_ms=compile_ms,
        break_even=compile_ms / saved if compile_ms and saved and saved > 0 else None,
    )


def _beyond_prefix(one: Timed, prefix: Timed) -> float:
    """Share of what prefix caching computed of the same prompt that was reused."""
    known = prefix.receipt.exact
    missed = prefix.receipt.context_tokens - known
    reused = one.receipt.exact + one.receipt.stitched - known
    return min(1.0, max(0.0, reused / missed)) if missed else 0.0


def _compile_ms(state: _Run, variant: Variant) -> float | None:
    compiled = state.compiled.get(variant.mode) if variant.stitches else None
    if compiled is None or not compiled.tokens:
        return None
    return compiled.ms / compiled.tokens * median([float(drawn.tokens) for drawn in state.draws])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, between neighbours by interpolation."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), percentile(values, 0.95))
