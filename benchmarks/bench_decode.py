"""Tokens a second after the prompt: the engine, without and with quantised weights, against `generate`.

All of transformers' `generate` in float32, the engine, and the engine with `--quantize int8` write the same number of
tokens behind the same prompts, by turns in one run: a short prompt, and one of stitched chunks, one request alone
and several side by side. Times are of the tokens after the first; the best of the runs counts, since the others were
disturbed. Processor time a token is shown for machines that are shared. Quote the ratios.

    python benchmarks/bench_decode.py [--model DIR] [--long 3000] [--batch 8] [--tokens 24] [--runs 2]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from words import configured_model, random_piece

from epicrag.serving.engine import Engine
from epicrag.serving.link import run
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Prompt
from epicrag.serving.stitched import Stitched
from epicrag.serving.threads import settle

CHUNK = 490
POLICY = "legolink(8)"


class Clock:
    """Takes the wall time and the processor time at each token; a streamer of transformers, too."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []
        self._prompt = True

    def put(self, _tokens: Any) -> None:
        """Called by `generate` for the prompt, then at each token."""
        if not self._prompt:
            self.tick()
        self._prompt = False

    def end(self) -> None:
        pass

    def tick(self) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def per_token(self) -> tuple[float, float]:
        """Seconds of the clock and of the processor, a step."""
        (wall, processor), (last_wall, last_processor) = self.times[0], self.times[-1]
        steps = len(self.times) - 1
        return (last_wall - wall) / steps, (last_processor - processor) / steps


def plain(module: Any, prompts: Sequence[Sequence[int]], n_tokens: int) -> Clock:
    clock = Clock()
    ids = torch.tensor([list(p) for p in prompts])
    with torch.inference_mode():
        module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_tokens,
            min_new_tokens=n_tokens,
            do_sample=False,
            streamer=clock,
        )
    return clock


def engine(served: Engine, prompts: Sequence[Prompt], n_tokens: int, policy: str = POLICY) -> Clock:
    clock = Clock()
    with ExitStack() as stack:
        every = [
            stack.enter_context(stitched(served, prompt, n_tokens, policy)) for prompt in prompts
        ]
        tokens = [int(one.linked.link()[0].argmax()) for one in every]
        clock.tick()
        for _ in range(n_tokens - 1):
            jobs = [one.linked.step_job([t]) for one, t in zip(every, tokens, strict=True)]
            tokens = [int(logits[0].argmax()) for logits in run(jobs)]
            clock.tick()
    return clock


def stitched(served: Engine, prompt: Prompt, n_tokens: int, policy: str = POLICY) -> Stitched:
    return served.stitched(prompt, parse_policy(policy), n_new=n_tokens)


def prompts_of(served: Engine, size: int, n: int, rng: random.Random) -> list[Prompt]:
    """`n` prompts of about `size` tokens: the same chunks in other orders, or one short chunk of their own."""
    around = 45
    if size < CHUNK:
        return [
            Prompt("Which word?", (random_piece(served, max(4, size - around), rng),))
            for _ in range(n)
        ]
    pieces = [random_piece(served, CHUNK, rng) for _ in range(size // CHUNK)]
    return [Prompt("Which word?", tuple(rng.sample(pieces, len(pieces)))) for _ in range(n)]


def same_length(ids: list[list[int]]) -> list[list[int]]:
    """Cut to the shortest: `generate` gets one rectangle without padding."""
    shortest = min(map(len, ids))
    return [one[len(one) - shortest :] for one in ids]


def measure(args: Any) -> Iterator[dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(str(args.model), dtype=torch.float32).eval()
    engines = {
        kind: Engine.load(
            args.model,
            name=kind,
            device="cpu",
            dtype="float32",
            quantize=kind,
            kv_memory_bytes=3 << 30,
        )
        for kind in ("none", "int8")
    }
    rng = random.Random(0)
    for size in (args.short, args.long):
        for batch in (1, args.batch):
            prompts = prompts_of(engines["none"], size, batch, rng)
            ids = []
            for prompt in prompts:
                with stitched(engines["none"], prompt, 1) as one:
                    ids.append(list(one.layout.ids))
            ids = same_length(ids)
            ways: dict[str, Callable[[], Clock]] = {
                "generate": lambda ids=ids: plain(module, ids, args.tokens),
                **{
                    f"engine {kind}": lambda served=served, prompts=prompts: engine(
                        served, prompts, args.tokens
                    )
                    for kind, served in engines.items()
                },
            }
            best: dict[str, tuple[float, float]] = {}
            for _ in range(args.runs):
                for name, way in ways.items():
                    got = way().per_token()
                    best[name] = tuple(map(min, got, best.get(name, got)))  # type: ignore[assignment]
            for name, (wall, processor) in best.items():
                yield {
                    "way": name,
                    "prompt_tokens": len(ids[0]),
                    "batch": batch,
                    "tokens_per_s": batch / wall,
                    "cpu_ms_per_token": 1000 * processor / batch,
                    "ratio": best["generate"][0] / wall,
                    "cpu_ratio": best["generate"][1] / processor,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model folder (default: the configured model)")
    parser.add_argument("--short", type=int, default=64)
    parser.add_argument("--long", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--runs", type=int, default=2)
    args = parser.parse_args()
    args.model = args.model or configured_model()
    threads = settle()
    print(f"{args.model.name}, {threads.n} threads ({threads.why}), best of {args.runs}\n")
    print("| prompt | requests | way | tokens/s | against generate | CPU ms a token | CPU ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for row in measure(args):
        rows.append(row)
        print(
            f"| {row['prompt_tokens']:,} | {row['batch']} | {row['way']} | {row['tokens_per_s']:.1f} "
            f"| {row['ratio']:.2f}x | {row['cpu_ms_per_token']:.1f} | {row['cpu_ratio']:.2f}x |",
            flush=True,
        )
    print()
    print(
        json.dumps(
            {"bench": "decode", "model": args.model.name, "threads": threads.n, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
