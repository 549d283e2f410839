"""The engine with the geometry of a 1B and an 8B model: full prefill, prefix caching and stitched chunks, shuffled.

Weights are random and are made on the device: for speed they are as good as any, and nothing is fetched. Chunks of
512 tokens are computed once; then the same prompt comes in new orders, each answered under every policy before the
next. `first`: milliseconds to the first token, medians over the orders, and the same as multiples of the others';
`stitch`: what planning, policy and page tables take beside the link pass. `decode`: tokens a second of one answer, and
of several side by side in one batch. `rotate`: the keys of the whole prompt, in all layers, by the kernel that exports
use; the engine itself rotates none. Prints a table for each model, and a line of JSON.

    python benchmarks/bench_gpu.py [--models 1B 8B] [--tokens 4096 16384 32768] [--runs 3]
    python benchmarks/bench_gpu.py --device cpu --tiny
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench_decode import engine as decode
from timing import Clock, show

from epicrag.kernels import ops
from epicrag.machine import describe
from epicrag.measure import Timed, Variant, timed
from epicrag.serving import attention
from epicrag.serving.engine import Engine
from epicrag.serving.forward import choose
from epicrag.serving.model import ServedModel
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import ChatFormat, Piece, Prompt
from epicrag.serving.tokenizer import UnitTokenizer

POLICIES = ("full", "prefix", "legolink(16)")
MODE = "isolated"
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
COMMON = {
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS: dict[str, dict[str, Any]] = {
    "1B": {
        **COMMON,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_parameters": {**LLAMA3, "factor": 32.0},
    },
    "8B": {
        **COMMON,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_parameters": {**LLAMA3, "factor": 8.0},
    },
}
"""As Llama 3.2 1B and Llama 3.1 8B are built."""
TINY = {
    **COMMON,
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    models: dict[str, dict[str, Any]]
    tokens: tuple[int, ...] = (4096, 16_384, 32_768)
    chunk: int = 512
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    runs: int = 3
    answer: int = 32
    beside: int = 16
    """Answers that are written side by side."""
    seconds: float = 0.5
    kv_memory: int = 2 << 30
    """Bytes on a CPU; on a GPU it is a share of what is free."""


# --- engines of random weights -------------------------------------------------------------------


def make_engine(name: str, settings: dict[str, Any], plan: Plan, folder: Path) -> Engine:
    """An engine whose weights are drawn on the device, and whose tokenizer has a token for each byte."""
    save_tokenizer(folder)
    tokenizer = UnitTokenizer.load(folder)
    served = make_model(settings, plan)
    return Engine(
        served,
        tokenizer,
        ChatFormat.load(folder, tokenizer),
        name=f"random {name}",
        compile_mode=MODE,
        kv_memory_bytes=plan.kv_memory,
        gpu_memory_utilization=0.6,
        self_check=False,
    )


def make_model(settings: dict[str, Any], plan: Plan) -> ServedModel:
    """The module is made where it stays and in the type it stays in: there is no room for a second one."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    attention.register()
    torch.manual_seed(0)
    config = LlamaConfig(**settings)
    with torch.device(plan.device):
        module = AutoModelForCausalLM.from_config(config, dtype=plan.dtype).eval()
    served = ServedModel(module, "random", config.max_position_embeddings)
    stored = str(plan.dtype).removeprefix("torch.")
    served._fast, served.forward_kind = choose(served, stored, "none")
    return served


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(folder)


def pieces_of(n_tokens: int, chunk: int) -> list[Piece]:
    """Chunks of exactly so many bytes, each its own text: a byte is a token."""
    return [Piece((f"{n:06d}" * chunk)[:chunk]) for n in range(n_tokens // chunk)]


# --- measuring -----------------------------------------------------------------------------------


def shuffled(pieces: Sequence[Piece], n: int, rng: random.Random) -> list[Prompt]:
    """The same chunks in `n` orders, none of which begins as another does."""
    firsts = rng.sample(pieces, min(n, len(pieces)))
    out = []
    for number in range(n):
        first = firsts[number % len(firsts)]
        rest = [piece for piece in pieces if piece is not first]
        order = (first, *rng.sample(rest, len(rest)))
        # Without labels: of single bytes they would be more tokens than they are of any model.
        out.append(Prompt("Which one is it?", order, labels=False))
    return out


def measure(engine: Engine, n_tokens: int, plan: Plan) -> list[dict[str, Any]]:
    """A row for each policy."""
    rng = random.Random(n_tokens)
    variants = [Variant(parse_policy(name), MODE) for name in POLICIES]
    orders = shuffled(pieces_of(n_tokens, plan.chunk), plan.runs + 1, rng)
    for variant in reversed(variants):  # what is compiled at first use, the chunks among it
        timed(engine, orders[0], variant, 3)
    found: dict[str, list[Timed]] = {variant.name: [] for variant in variants}
    for prompt in orders[1:]:
        for variant in variants:
            found[variant.name].append(timed(engine, prompt, variant, plan.answer))
    beside = many(engine, orders, plan)
    turned = rotated(engine, n_tokens, plan)
    first = {
        name: statistics.median(t.first_token_ms for t in all_) for name, all_ in found.items()
    }
    return [
        {
            "cached": n_tokens,
            "policy": name,
            "first": round(first[name], 1),
            "full /": round(first["full"] / first[name], 1),
            "prefix /": round(first["prefix"] / first[name], 1),
            "stitch": round(median_ms(all_, "select", "stitch"), 2),
            "link": round(median_ms(all_, "link"), 1),
            "computed": all_[0].receipt.recomputed + all_[0].receipt.fresh,
            "decode": round(statistics.median(t.decode_tokens / t.decode_ms for t in all_) * 1000),
            f"decode x{plan.beside}": beside if "legolink" in name else None,
            "rotate": turned if "legolink" in name else None,
        }
        for name, all_ in found.items()
    ]


def median_ms(every: Sequence[Timed], *stages: str) -> float:
    return statistics.median(sum(getattr(t.receipt.ms, s) for s in stages) for t in every)


def many(engine: Engine, orders: Sequence[Prompt], plan: Plan) -> int:
    """Tokens a second of answers side by side, all over the same chunks in orders of their own."""
    prompts = [orders[n % len(orders)] for n in range(plan.beside)]
    per_step, _ = decode(engine, prompts, plan.answer, POLICIES[-1]).per_token()
    return round(plan.beside / per_step)


def rotated(engine: Engine, n_tokens: int, plan: Plan) -> float:
    """Milliseconds to turn the keys of a prompt to their places, all layers in one call."""
    pool, geometry = engine.pool, engine.model.geometry()
    shape = (geometry.layers, geometry.groups, n_tokens, geometry.head_dim)
    keys = torch.randn(shape, device=pool.keys.device, dtype=torch.float32).to(pool.keys.dtype)
    out = torch.empty_like(keys)
    n = n_tokens // plan.chunk
    shifts = ops.Shifts(tuple(i * plan.chunk for i in range(n)), (plan.chunk,) * n)
    rotary = engine.layers.kinds[0].rotary
    clock = Clock(plan.seconds, plan.device)
    return round(clock.best(lambda: ops.rotate(keys, shifts, rotary, out=out)) * 1e3, 3)


def run(plan: Plan) -> Iterator[dict[str, Any]]:
    """One result a model."""
    for name, settings in plan.models.items():
        with tempfile.TemporaryDirectory() as folder:
            engine = make_engine(name, settings, plan, Path(folder))
            if engine.refusal:
                raise SystemExit(engine.refusal)
            rows = [row for n in plan.tokens for row in measure(engine, n, plan)]
        choices = ops.choices(engine.model.device)
        yield {
            **describe(engine),
            "forward": engine.model.forward_kind,
            "back_ends": {op: one.name for op, one in choices.items()},
            "results": rows,
        }
        del engine
        gc.collect()
        if plan.device != "cpu":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tokens", nargs="+", type=int, default=Plan.tokens)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--beside", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="a toy model: to see that it works")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(
            f"there is no {args.device} here (torch {torch.__version__} finds no GPU): nothing was measured; "
            "`--device cpu --tiny` runs the same code on a toy model"
        )
    if args.device == "cpu" and not args.tiny:
        raise SystemExit(
            "a CPU takes hours for these models: `epicrag bench` measures one that fits it, or --tiny"
        )
    if args.tiny:
        plan = tiny(args.device)
    else:
        models = {name: MODELS[name] for name in args.models}
        plan = Plan(
            models, tuple(args.tokens), device=args.device, runs=args.runs, beside=args.beside
        )
    torch.set_grad_enabled(False)
    results = []
    for result in run(plan):
        print(f"{result['model']}, {result['dtype']}, {result['processor']}: {result['forward']}")
        show(result["results"])
        results.append(result)
    print(json.dumps(results))


def tiny(device: str) -> Plan:
    return Plan(
        {"tiny": TINY},
        tokens=(128, 256),
        chunk=32,
        device=device,
        dtype=torch.float32,
        runs=2,
        answer=4,
        beside=3,
        seconds=0.02,
        kv_memory=32 << 20,
    )


if __name__ == "__main__":
    main()
