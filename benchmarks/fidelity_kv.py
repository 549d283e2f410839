"""KV in 8 bits against KV in 16: how far each is from full prefill, what it takes, and how fast it is read.

Two engines over one store answer the same prompts: passages found in an index, or the documents of question sets.
An answer is written, then forced under full prefill and under each policy in 16 and in 8 bits: mean KL per token,
agreement of the most likely token. Then, in turns and after everything was loaded once: the time to load the
chunks from disk, to the first token with the chunks in memory, and of each token after it, as processor time, so
that a shared machine disturbs it little (run it with OMP_NUM_THREADS=1). One JSON line a prompt goes to --out.

    python benchmarks/fidelity_kv.py --model DIR --store DIR --out rows.jsonl [--index DIR questions.txt]... [SET.jsonl:8]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from check_reuse import questions_of
from fidelity import forced, items_of, text_of

from epicrag.config import load_config
from epicrag.index.kvstore import KVStore
from epicrag.measure import divergence
from epicrag.pipeline import Pipeline
from epicrag.serving.engine import Engine
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling

POLICIES = ("legolink(8)", "none")
KINDS = ("auto", "int8")
MODE = "neighbour"


def from_index(index: Path, home: Path | None, questions: Path, count: int, k: int) -> list[Prompt]:
    """The prompts of `epicrag ask`, their passages in a random order."""
    flags = {"index": str(index), **({"home": str(home)} if home else {})}
    prompts = []
    with Pipeline.open(load_config(flags), kv_folder=index / "kv") as pipeline:
        for seed, question in enumerate(questions_of(questions, count)):
            hits = pipeline.search(question, k=k)
            random.Random(seed).shuffle(hits)
            prompts.append(pipeline.prompt(question, hits))
    return prompts


def from_set(name: str, most: int) -> list[Prompt]:
    """Documents of question sets as passages, each compiled behind the one before it in the set, shuffled."""
    path, _, count = name.rpartition(":")
    prompts = []
    for seed, item in enumerate(items_of(Path(path), int(count), most)):
        texts = [text_of(document) for document in item["documents"]]
        pieces = [Piece(text, before) for text, before in zip(texts, [None, *texts], strict=False)]
        random.Random(seed).shuffle(pieces)
        prompts.append(Prompt(item["question"], tuple(pieces)))
    return prompts


def measure(engines: dict[str, Engine], prompt: Prompt, n_answer: int, runs: int) -> dict[str, Any]:
    """KL and agreement for each policy and kind, and the times of the first policy."""
    plain = engines["auto"]
    chosen = parse_policy(POLICIES[0])
    sampling = Sampling(max_tokens=n_answer)
    with plain.generate(prompt, policy=chosen, sampling=sampling, mode=MODE) as written:
        for _ in written:
            pass
    answer = written.token_ids
    want, _ = forced(plain, prompt, "full", MODE, answer)
    row: dict[str, Any] = {"question": prompt.question, "tokens": len(answer)}
    for policy in POLICIES:
        found = {
            kind: forced(engine, prompt, policy, MODE, answer)[0]
            for kind, engine in engines.items()
        }
        for kind, got in found.items():
            row[f"{policy} {kind} kl"], row[f"{policy} {kind} top1"] = divergence(want, got)
        apart = divergence(found["auto"], found["int8"])
        row[f"{policy} apart kl"], row[f"{policy} apart top1"] = apart
    for turn in range(runs):
        for kind in KINDS[:: -1 if turn % 2 else 1]:
            for name, value in timed(engines[kind], prompt, n_answer).items():
                row.setdefault(f"{kind} {name}", []).append(value)
    for engine in engines.values():
        engine.pool.drop_idle()
    return row


def timed(engine: Engine, prompt: Prompt, n_tokens: int) -> dict[str, float]:
    """Milliseconds of processor time: to load the chunks, to the first token, and of each token after it."""
    policy = parse_policy(POLICIES[0])
    engine.pool.drop_idle()
    began = time.process_time()
    with engine.stitched(prompt, policy, mode=MODE, n_new=n_tokens) as stitched:
        context = stitched.plan.exact + stitched.plan.stitched + stitched.plan.recomputed
    loaded = time.process_time()
    sampling = Sampling(max_tokens=n_tokens)
    with engine.generate(prompt, policy=policy, sampling=sampling, mode=MODE) as generation:
        next(generation, "")
        first = time.process_time()
        for _ in generation:
            pass
        steps = max(1, len(generation.token_ids) - 1)
    return {
        "load": (loaded - began) * 1000,
        "first": (first - loaded) * 1000,
        "decode": (time.process_time() - first) * 1000 / steps,
        "context": context,
    }


def table(rows: Sequence[dict[str, Any]], each: dict[str, int]) -> Iterator[str]:
    yield "| KV | policy | KL mean | median | worst | top-1 | KL from 16 bits | worst | top-1 |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for policy in POLICIES:
        for kind in KINDS:
            kl = [row[f"{policy} {kind} kl"] for row in rows]
            same = statistics.fmean(row[f"{policy} {kind} top1"] for row in rows)
            apart = [row[f"{policy} apart kl"] for row in rows]
            alike = statistics.fmean(row[f"{policy} apart top1"] for row in rows)
            rest = f"{statistics.fmean(apart):.5f} | {max(apart):.5f} | {alike:.3f}"
            yield (
                f"| {kind} | {policy} | {statistics.fmean(kl):.4f} | {statistics.median(kl):.4f} | {max(kl):.3f} "
                f"| {same:.3f} | {rest if kind == 'int8' else '| |'} |"
            )
    yield ""
    yield "| KV | bytes a token | context | load ms | first token ms | token ms |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind in KINDS:
        cells = [
            statistics.fmean(min(row[f"{kind} {name}"]) for row in rows)
            for name in ("context", "load", "first", "decode")
        ]
        shown = " | ".join([f"{cells[0]:,.0f}", *(f"{cell:.1f}" for cell in cells[1:])])
        yield f"| {kind} | {each[kind]:,} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help="FILE.jsonl:COUNT")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--index", type=Path, help="an index, of which --questions are asked")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("-k", type=int, default=6)
    parser.add_argument("--max-documents", type=int, default=6)
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--store", type=Path, required=True, help="where KV is kept between runs")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    groups: dict[str, list[Prompt]] = {}
    if args.index:
        groups[args.index.name] = from_index(
            args.index, args.home, args.questions, args.count, args.k
        )
    for name in args.sets:
        groups[Path(name.rpartition(":")[0]).stem] = from_set(name, args.max_documents)
    store = KVStore(args.store)
    engines = {
        kind: Engine.load(
            args.model,
            name=args.model.name,
            store=store,
            kv_dtype=None if kind == "auto" else kind,
            compile_mode=MODE,
        )
        for kind in KINDS
    }
    each = {kind: engine.kv_bytes_per_token for kind, engine in engines.items()}
    rows: list[dict[str, Any]] = []
    with args.out.open("w", encoding="utf-8") as out:
        for group, prompts in groups.items():
            for number, prompt in enumerate(prompts, 1):
                rows.append(
                    {"set": group, **measure(engines, prompt, args.answer_tokens, args.runs)}
                )
                out.write(json.dumps(rows[-1]) + "\n")
                out.flush()
                print(f"{group} {number}/{len(prompts)}", file=sys.stderr, flush=True)
    for group in groups:
        some = [row for row in rows if row["set"] == group]
        print(f"\n{group}: {len(some)} prompts\n", *table(some, each), sep="\n")
    print(f"\nall: {len(rows)} prompts\n", *table(rows, each), sep="\n")


if __name__ == "__main__":
    main()
