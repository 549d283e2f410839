"""On the documents of an index: is every chunk reused in any order, and is full recomputation really full?

For each question of a file (one a line, or the `question` column of a TSV) the passages found are shuffled and
asked about under three policies: `none` shows how much is reused, `legolink(100000)` recomputes every chunk
over the stitched pages and must give the text of `full`. Prints a table, a JSON line, and exits 1 when
anything fails.

    python benchmarks/check_reuse.py --index DIR questions.txt [--count 10] [-k 6]
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from pathlib import Path

from epicrag.config import load_config
from epicrag.pipeline import Pipeline
from epicrag.types import Receipt


def questions_of(path: Path, count: int) -> list[str]:
    """Questions spread evenly over a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".tsv":
        rows = csv.DictReader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
        found = [row["question"] for row in rows if row["question"] and row["expect"] == "ok"]
    else:
        found = [line for line in text.split("\n") if line.strip()]
    return found[:: max(1, len(found) // count)][:count]


def adds_up(receipt: Receipt, prompt_tokens: int) -> bool:
    context = receipt.exact + receipt.stitched + receipt.recomputed
    return context == receipt.context_tokens and context + receipt.fresh == prompt_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("--index")
    parser.add_argument("--home")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("-k", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    flags = {"index": args.index, "home": args.home, "max_tokens": args.max_tokens}
    config = load_config({key: value for key, value in flags.items() if value is not None})
    rows = []
    with Pipeline.open(config) as pipeline:
        for number, question in enumerate(questions_of(args.questions, args.count)):
            hits = pipeline.search(question, k=args.k)
            order = random.Random(number).sample(hits, len(hits))
            # Compile what the index holds no KV of yet, as `epicrag ingest` does.
            for _ in pipeline.engine.compile(pipeline.prompt(question, order).pieces):
                pass
            answers = {
                policy: pipeline.ask(question, chunks=order, policy=policy)
                for policy in ("none", "legolink(100000)", "full")
            }
            receipts = {name: answer.receipt for name, answer in answers.items()}
            naive = receipts["none"]
            assert naive is not None
            rows.append(
                {
                    "question": question,
                    "chunks": len(hits) - naive.dropped_chunks,
                    "context": naive.context_tokens,
                    "hit": (naive.exact + naive.stitched) / naive.context_tokens,
                    "adds_up": all(
                        r is not None and adds_up(r, answers[name].usage.prompt_tokens)
                        for name, r in receipts.items()
                    ),
                    "same": answers["legolink(100000)"].text == answers["full"].text,
                }
            )
    print(
        "| question | chunks | context tokens | reused in shuffled order | receipts add up | all recomputed = full |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {str(row['question'])[:60]} | {row['chunks']} | {row['context']:,} | {row['hit']:.0%} "
            f"| {'yes' if row['adds_up'] else 'NO'} | {'yes' if row['same'] else 'NO'} |"
        )
    print(json.dumps({"bench": "reuse", "rows": rows}))
    sys.exit(not all(row["hit"] == 1 and row["adds_up"] and row["same"] for row in rows))


if __name__ == "__main__":
    main()
