"""Time to first token of each link policy against full prefill, on the same shuffled prompts, in one run.

Prompts are N chunks of random words, cached in the pool, in a new order for every repetition, and a question.
Times are from the call to the first token, tokenisation included; `load` from disk is shown apart. Quote the
ratios: they are of medians, pair by pair from the same run.

    python benchmarks/bench_ttft.py [--model DIR] [--chunks 6] [--chunk-tokens 490] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from epicrag.config import load_config
from epicrag.index.kvstore import KVStore
from epicrag.models import Models
from epicrag.serving.engine import Engine
from epicrag.serving.policies import Policy, parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling

POLICIES = ("full", "prefix", "none", "legolink(4)", "legolink(16)", "legolink(16)+correct(0.25)")
WORDS = [
    "river",
    "stone",
    "market",
    "window",
    "garden",
    "paper",
    "engine",
    "letter",
    "winter",
    "village",
    "bridge",
    "copper",
    "harbour",
    "field",
    "signal",
    "kitchen",
    "mountain",
    "ticket",
    "forest",
    "lantern",
    "theatre",
    "valley",
    "orchard",
    "wheel",
    "station",
    "feather",
]


def configured_model() -> Path:
    """The folder of the model that `epicrag ask` would use here."""
    config = load_config({})
    return Models(config).ensure(config.model)


def make_piece(engine: Engine, n_tokens: int, rng: random.Random) -> Piece:
    """Random words, as near to `n_tokens` tokens as words allow, never above."""
    words = [rng.choice(WORDS) for _ in range(n_tokens)]
    while engine.tokenizer.count(" ".join(words)) > n_tokens:
        words.pop()
    return Piece(" ".join(words))


def time_first_token(
    engine: Engine, prompt: Prompt, policy: Policy, n_decode: int
) -> dict[str, float]:
    """Milliseconds to the first token, by stage, and tokens per second after it."""
    start = time.perf_counter()
    sampling = Sampling(max_tokens=n_decode, stop=())
    with engine.generate(prompt, policy=policy, sampling=sampling) as generation:
        next(generation)
        first = time.perf_counter()
        for _ in generation:
            pass
        seconds = time.perf_counter() - first
        receipt = generation.receipt
        more = generation.usage.completion_tokens - 1
    return {
        "ttft": (first - start) * 1000,
        "load": receipt.ms.load,
        "stitch": receipt.ms.stitch + receipt.ms.select,
        "link": receipt.ms.link,
        "share": receipt.recomputed / receipt.context_tokens,
        "decode": more / seconds if more else 0.0,
        "tokens": generation.usage.prompt_tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model folder (default: the configured model)")
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--chunk-tokens", type=int, default=490)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--decode", type=int, default=16)
    args = parser.parse_args()
    args.model = args.model or configured_model()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        store = KVStore(Path(folder))
        engine = Engine.load(args.model, name=args.model.name, store=store)
        pieces = [make_piece(engine, args.chunk_tokens, rng) for _ in range(args.chunks)]
        begun = time.perf_counter()
        for _ in engine.compile(pieces):
            pass
        compile_ms = (time.perf_counter() - begun) * 1000
        policies = {name: parse_policy(name) for name in POLICIES}
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in policies}
        # One uncounted round: pages are touched and chunks come into the pool.
        for counted in range(-1, args.runs):
            order = rng.sample(pieces, len(pieces))
            prompt = Prompt("Which words stand beside the lantern?", tuple(order))
            for name, policy in policies.items():
                got = time_first_token(engine, prompt, policy, args.decode)
                if counted >= 0:
                    rows[name].append(got)
    report(engine, rows, compile_ms, args)


def report(
    engine: Engine, rows: dict[str, list[dict[str, float]]], compile_ms: float, args: Any
) -> None:
    """Print the table and one JSON line."""
    tokens = int(rows["full"][0]["tokens"])
    print(
        f"{engine.name}, {engine.dtype} on {engine.device}, {os.cpu_count()} cores, "
        f"{platform.machine()}; {tokens} tokens: {args.chunks} chunks of {args.chunk_tokens}, "
        f"compile mode {engine.compile_mode}, median of {args.runs} shuffled prompts\n"
        f"compiling the chunks once: {compile_ms:,.0f} ms\n"
    )
    print("| policy | TTFT ms | against full | link ms | stitch ms | recomputed | decode tok/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    out = []
    for name, some in rows.items():
        middle = {key: statistics.median(row[key] for row in some) for key in some[0]}
        ratio = statistics.median(
            full["ttft"] / row["ttft"] for full, row in zip(rows["full"], some, strict=True)
        )
        out.append({"policy": name, **middle, "speedup": ratio})
        print(
            f"| {name} | {middle['ttft']:,.0f} | {ratio:.1f}x | {middle['link']:,.0f} "
            f"| {middle['stitch']:.1f} | {middle['share']:.1%} | {middle['decode']:.1f} |"
        )
    print()
    print(json.dumps({"bench": "ttft", "model": engine.name, "prompt_tokens": tokens, "rows": out}))


if __name__ == "__main__":
    main()
