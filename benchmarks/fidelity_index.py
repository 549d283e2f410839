"""Fidelity where it counts: the product's own chunks, found by its own search, on a user's index.

For each question the passages are retrieved as `epicrag ask` would, full prefill writes its greedy answer, and
that answer is forced under every compile mode and policy: mean KL per token, agreement of the most likely
token, log-likelihood. `neighbour` is the passage before, in the document, as in the product.

    python benchmarks/fidelity_index.py --index DIR questions.txt [--count 12] [-k 6] --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from check_reuse import questions_of
from fidelity import forced, table

from epicrag.config import load_config
from epicrag.measure import divergence
from epicrag.pipeline import Pipeline
from epicrag.serving.policies import Full
from epicrag.serving.prompt import Prompt
from epicrag.serving.sample import Sampling

MODES = ("isolated", "prefix", "neighbour")
POLICIES = (
    "none",
    "legolink(16)",
    "legolink(16)+correct(0.25)",
    "legolink(16)+correct(0.5)",
)


def prompt_of(pipeline: Pipeline, question: str, k: int, seed: int) -> Prompt:
    """The prompt of `epicrag ask`, its passages in a random order."""
    hits = pipeline.search(question, k=k)
    random.Random(seed).shuffle(hits)
    return pipeline.prompt(question, hits)


def measure(
    engine: Any,
    prompt: Prompt,
    n_answer: int,
    modes: Sequence[str] = MODES,
    policies: Sequence[str] = POLICIES,
) -> list[dict[str, Any]]:
    """One row for each mode and policy."""
    written = engine.generate(prompt, policy=Full(), sampling=Sampling(max_tokens=n_answer))
    for _ in written:
        pass
    answer = written.token_ids
    want, _ = forced(engine, prompt, "full", "isolated", answer)
    gold = torch.tensor(answer)[:, None]
    rows = []
    for mode in modes:
        for policy in policies:
            got, cost = forced(engine, prompt, policy, mode, answer)
            kl, same = divergence(want, got)
            context = cost.exact + cost.stitched + cost.recomputed
            rows.append(
                {
                    "id": prompt.question,
                    "mode": mode,
                    "policy": policy,
                    "kl": kl,
                    "top1": same,
                    "gold_ll": float(got.gather(1, gold).mean()),
                    "gold_ll_full": float(want.gather(1, gold).mean()),
                    "share": cost.recomputed / context,
                    "context": context,
                    "tokens": len(answer),
                }
            )
    engine.pool.drop_idle()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("-k", type=int, default=6)
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--mode", action="append", choices=MODES, help="only these, may be repeated"
    )
    parser.add_argument("--policy", action="append", help="only these, may be repeated")
    args = parser.parse_args()
    flags = {"index": args.index, "home": args.home}
    config = load_config({name: str(value) for name, value in flags.items() if value})
    modes, policies = args.mode or MODES, args.policy or POLICIES
    rows: list[dict[str, Any]] = []
    with Pipeline.open(config) as pipeline, args.out.open("w") as out:
        for number, question in enumerate(questions_of(args.questions, args.count)):
            prompt = prompt_of(pipeline, question, args.k, number)
            for row in measure(pipeline.engine, prompt, args.answer_tokens, modes, policies):
                rows.append(row)
                out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{number + 1}/{args.count} {question}", file=sys.stderr)
    print(table(rows, modes, policies))


if __name__ == "__main__":
    main()
