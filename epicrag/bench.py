"""Link policies against full prefill, on the same shuffled prompts, in turns, within one run.

What is compiled here is kept apart from the index, which stays as it is. Nothing is simulated: every figure of a
`Row` is of requests that ran.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Sequence
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
    from epicrag.serving.prompt import Piece, Prompt
    from epicrag.types import Hit

ALWAYS = ("full", "prefix")
"""What every run measures: the reference, and what prefix caching makes of the same prompts."""
USUAL = ("none@isolated", "legolink(16)@isolated", "none", "legolink(16)")
"""What it measures besides, unless told otherwise; the configured policy comes before them."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    policies: tuple[str, ...] = ()
    """Policies, each with `@mode` where it is not to be the configured compile mode; () for the configured
    policy and the `usual`."""
    usual: tuple[str, ...] = USUAL
    prompts: int = 4
    runs: int = 1
    """Times that each prompt is measured, in a new order each time."""
    size: Size = field(default_factory=Size)
    answer_tokens: int = 24
    concurrency: int = 8
    """Requests side by side in the throughput part, of as many requests; 0 leaves it out."""
    seed: int = 0


QUICK = Options(
    usual=("none", "legolink(16)"),
    prompts=1,
    runs=2,
    size=Size(tokens=900, chunks=3),
    answer_tokens=6,
    concurrency=0,
)


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
    """On what it was measured; `prompts` and `runs` are those that were, beside those that were planned."""
    prompt_tokens: int | None
    """Median over the prompts measured; None before the first."""
    interrupted: bool = False
    not_reached: tuple[str, ...] = ()
    """Policies, with their `@mode`, that an interrupt left no time for."""


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
class _Clock:
    """Says what is done, and how long the rest takes: as it was estimated, times how wrong that has been."""

    progress: Progress
    total: int
    """Measurements."""
    begun: float = field(default_factory=time.monotonic)
    done: int = 0
    planned: float = 0.0
    """Seconds that all takes by the first estimate."""
    spent: float = 0.0
    """Of those, what is behind us."""

    def plan(self, seconds: float) -> None:
        self.planned, self.spent, self.begun = seconds, 0.0, time.monotonic()

    @property
    def left(self) -> float:
        trust = self.planned / 10  # what is done of it weighs little in the beginning
        wrong = (time.monotonic() - self.begun + trust) / (self.spent + trust) if trust else 1.0
        return max(0.0, self.planned - self.spent) * wrong

    def begin(self, message: str) -> None:
        seconds = time.monotonic() - self.begun
        self.progress(
            Event("bench", self.done, self.total, seconds=seconds, message=message, left=self.left)
        )

    def end(self, cost: float, measured: int = 0) -> None:
        self.spent += cost
        self.done += measured
        if self.done == self.total:
            self.begin("")


@dataclass(slots=True)
class _Costs:
    """What each step is expected to take, in seconds, by a small measurement."""

    prefill: float = 0.0
    answer: float = 0.0
    """All tokens but the first."""

    def measure(self, variant: Variant) -> float:
        """One answer, and its forcing: after prefix caching, the prompt is known to the latter."""
        prefills = 0.4 if variant.stitches else 2 if variant.name == "full" else 1
        return self.prefill * prefills + self.answer

    def under_load(self, variant: Variant, n_requests: int) -> float:
        return n_requests * (self.prefill * (0.25 if variant.stitches else 1) + self.answer / 2)

    @property
    def compiling(self) -> float:
        """The chunks of a prompt in one mode."""
        return self.prefill * 1.5


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
    clock: _Clock


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
        options.policies or (pipeline.config.link_policy, *options.usual), pipeline.config.compile
    )
    progress(Event("doing", message="drawing the prompts"))
    draws = draw(pipeline, items, options.prompts, options.size, options.seed)
    progress(Event("doing", message=f"loading the model {pipeline.config.model}"))
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
        clock=_Clock(progress, len(variants) * (len(prompts) + bool(options.concurrency))),
    )
    interrupted = False
    try:
        costs = _begin(state, progress)
        _measure(state, costs)
        _under_load(state, costs)
    except KeyboardInterrupt:
        interrupted = True
    return _report(pipeline, state, items, interrupted)


# --- what is measured ----------------------------------------------------------------------------


def split_names(text: str) -> tuple[str, ...]:
    """Return the policies of a comma-separated list; commas inside of brackets part nothing."""
    names = tuple(name.strip() for name in re.split(r",(?![^()]*\))", text))
    if not all(names):
        raise UsageError(
            f"{text!r} is no list of policies", 'name some, as in "none,legolink(16)@isolated"'
        )
    return names


def variants_of(names: Sequence[str], mode: str) -> list[Variant]:
    """Return what always is measured and these, each once. UsageError for a policy or a mode unknown."""
    from epicrag.serving.compile import check_mode
    from epicrag.serving.policies import parse_policy

    variants: dict[tuple[str, str], Variant] = {}
    for name in (*ALWAYS, *names):
        text, _, own = name.partition("@")
        policy = parse_policy(text)
        if own and policy.compile_mode and own.strip() != policy.compile_mode:
            raise UsageError(
                f"{policy.name} is defined with the compile mode {policy.compile_mode}, not {own.strip()}",
                f"leave out @{own.strip()}",
            )
        chosen = policy.compile_mode or check_mode(own.strip() or mode)
        reuses = policy.reuse == "chunks"
        # Full and prefix read no compiled chunks: a mode would only list them twice.
        variants.setdefault((policy.name, chosen if reuses else ""), Variant(policy, chosen))
    return list(variants.values())


def _shuffled(pipeline: Pipeline, draws: Sequence[Draw], runs: int, seed: int) -> list[Prompt]:
    """Each draw in as many orders, none twice while there are others: prefix caching would know it whole."""
    rng = random.Random(seed)
    prompts = []
    seen: list[set[tuple[Hit, ...]]] = [set() for _ in draws]
    for _ in range(runs):
        for drawn, orders in zip(draws, seen, strict=True):
            if len(orders) == math.factorial(len(drawn.hits)):
                orders.clear()
            order = tuple(rng.sample(drawn.hits, len(drawn.hits)))
            while order in orders:
                order = tuple(rng.sample(drawn.hits, len(drawn.hits)))
            orders.add(order)
            prompts.append(pipeline.prompt(drawn.question, order))
    return prompts


def _refuse_too_long(engine: Engine, prompts: Sequence[Prompt], options: Options) -> None:
    for prompt in prompts:
        if engine.lay_out(prompt, options.answer_tokens).dropped:
            raise UsageError(
                f"{options.size.tokens:,} tokens of passages do not fit the window of {engine.name}, "
                f"which is {engine.context_window:,}",
                "lower --prompt-tokens",
            )


# --- the run -------------------------------------------------------------------------------------


def _begin(state: _Run, progress: Progress) -> _Costs:
    """Say by a small prefill how long all will take, and touch every page of the model with a full one."""
    first, full, engine = state.prompts[0], state.variants[0], state.engine
    progress(Event("doing", message="a first small measurement"))
    timed(engine, replace(first, pieces=()), full, 2)  # what is loaded at first use
    small = timed(engine, replace(first, pieces=first.pieces[:1]), full, 3)
    options, n_points, modes = state.options, len(state.prompts), len(state.compiled)
    ratio = engine.lay_out(first, options.answer_tokens).n_tokens / small.prompt_tokens
    per_token = small.decode_ms / 1000 / max(1, small.decode_tokens)
    costs = _Costs(small.first_token_ms / 1000 * ratio, per_token * (options.answer_tokens - 1))
    each = sum(costs.measure(variant) for variant in state.variants)
    load = sum(costs.under_load(variant, options.concurrency) for variant in state.variants)
    seconds = costs.prefill + n_points * each + len(state.draws) * modes * costs.compiling + load
    points = f"{_count(n_points, 'shuffled prompt')} under {len(state.variants)} policies"
    note = f"{points}: about {_minutes(seconds)}; Ctrl-C prints what is measured by then"
    progress(Event("note", message=note))
    state.clock.plan(seconds)
    state.clock.begin("a full prefill that does not count")
    timed(engine, first, full, 1)
    state.clock.end(costs.prefill)
    return costs


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def _compile(state: _Run, pieces: Sequence[Piece], mode: str, where: str) -> None:
    """Compile the chunks of a prompt in a mode, by the clock: those of the prompts before are there."""
    compiled = state.compiled[mode]
    done = state.engine.compile(pieces, mode)
    for number in range(1, len(pieces) + 1):
        state.clock.begin(f"{where}: compiling chunk {number} of {len(pieces)}, {mode}")
        begun = time.perf_counter()
        item = next(done, None)
        if item is None:
            return
        if item[2]:
            compiled.tokens += item[2]
            compiled.ms += (time.perf_counter() - begun) * 1000


def _measure(state: _Run, costs: _Costs) -> None:
    """Measure the prompts one by one, each under all policies before the next.

    A mode's chunks are compiled when the first policy needs them: an early end leaves whole rows.
    """
    n_tokens = state.options.answer_tokens
    for number, prompt in enumerate(state.prompts):
        drawn = state.draws[number % len(state.draws)]
        where = f"prompt {number + 1} of {len(state.prompts)}"
        gold = state.engine.tokenizer.ids(drawn.answer)[:n_tokens] if drawn.answer else None
        answer: Sequence[int] = ()
        want: Tensor | None = None
        for variant in state.variants:
            measured = state.measured[variant]
            if variant.stitches:
                load_ms = state.compiled[variant.mode].load_ms
                if number < len(state.draws) and number not in load_ms:
                    _compile(state, prompt.pieces, variant.mode, where)
                    state.clock.end(costs.compiling)
                if number not in load_ms:
                    load_ms[number] = load(state.engine, prompt, variant)
            state.clock.begin(f"{where}: measuring {named(variant)}")
            measured.timed[number] = found = timed(state.engine, prompt, variant, n_tokens)
            # The first variant is full prefill: its own answer is the measure, unless there is a right one.
            answer = answer or gold or found.token_ids
            got = forced(state.engine, prompt, variant, answer)
            want = got if want is None else want
            measured.fidelity[number] = divergence(want, got)
            state.clock.end(costs.measure(variant), measured=1)


def named(variant: Variant) -> str:
    """A policy with its mode, as `--policies` takes it."""
    return f"{variant.name}@{variant.mode}" if variant.stitches else variant.name


def _under_load(state: _Run, costs: _Costs) -> None:
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
        state.clock.begin(f"{_count(threads, 'request')} side by side: {named(variant)}")
        state.measured[variant].load = side_by_side(
            state.engine, prompts, variant, state.options.answer_tokens, threads
        )
        state.clock.end(costs.under_load(variant, threads), measured=1)


# --- what came out -------------------------------------------------------------------------------


def _report(pipeline: Pipeline, state: _Run, items: Sequence[Item], interrupted: bool) -> Report:
    rows = [_row(state, variant) for variant in state.variants if state.measured[variant].timed]
    n_points, n_draws = len(state.measured[state.variants[0]].timed), len(state.draws)
    seen = state.draws[:n_points]
    chunk_tokens = _median([float(hit.chunk.n_tokens) for drawn in seen for hit in drawn.hits])
    known = [one.prompt_tokens for one in state.measured[state.variants[0]].timed.values()]
    has_answers = all(drawn.answer is not None for drawn in state.draws)
    setup: dict[str, str | int | float | None] = {
        **describe(state.engine),
        "index": None if any(item.documents for item in items) else str(pipeline.config.index),
        "questions": len(items) or None,
        "prompts": len(seen),
        "runs": math.ceil(n_points / n_draws),
        "planned_prompts": n_draws,
        "planned_runs": state.options.runs,
        "planned_policies": len(state.variants),
        "chunks_per_prompt": _median([float(len(drawn.hits)) for drawn in seen]),
        "chunk_tokens": None if chunk_tokens is None else round(chunk_tokens),
        "answer_tokens": state.options.answer_tokens,
        "forced": "the right answer" if has_answers else "what full prefill writes",
        "concurrency": state.options.concurrency,
        "seed": state.options.seed,
    }
    prompt_tokens = round(median([float(n) for n in known])) if known else None
    left = [named(each) for each in state.variants if not state.measured[each].timed]
    return Report(tuple(rows), setup, prompt_tokens, interrupted, tuple(left))


def _row(state: _Run, variant: Variant) -> Row:
    measured = state.measured[variant]
    full, prefix = (state.measured[each].timed for each in state.variants[:2])
    found = measured.timed
    times = [one.first_token_ms for one in found.values()]
    hits = [_beyond_prefix(one, prefix[n]) for n, one in found.items() if n in prefix]
    ratios = [full[n].first_token_ms / one.first_token_ms for n, one in found.items() if n in full]
    decoded = sum(one.decode_tokens for one in found.values())
    # Where one answer's logits were no numbers, nothing can be said of the policy's fidelity.
    sound = not any(math.isnan(kl) for kl, _ in measured.fidelity.values())
    fidelity = list(measured.fidelity.values()) if sound else []
    kl = sorted((kl for kl, _ in fidelity), reverse=True)
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
        top1=_mean([same for _, same in fidelity]),
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
