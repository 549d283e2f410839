"""How far each link policy and compile mode is from full prefill, on question sets with documents.

For every item the documents are the chunks. The gold answer is forced; over its tokens we compare the
distribution under a policy with that of full prefill: mean KL (nats), agreement of the most likely token, and
the gold answer's mean log-likelihood. `share` is the recomputed part of the context. One JSON line per item,
policy and mode goes to --out as it is measured (a later run with the same --out resumes); the table is printed
from that file.

    python benchmarks/fidelity.py --model DIR --embedder DIR --out rows.jsonl SET.jsonl:40 SET2.jsonl:10

`--half tune` and `--half report` take every other item: what is fitted on one is reported on the other.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from epicrag.measure import divergence
from epicrag.serving.engine import Engine
from epicrag.serving.policies import Full, parse_policy
from epicrag.serving.prompt import Piece, Prompt

POLICIES = (
    "none",
    "damp(4,15)",
    "legolink(4)",
    "legolink(8)",
    "legolink(16)",
    "legolink(8)+correct(0.5)",
    "legolink(16)+correct(0.5)",
)
MODES = ("isolated", "sink", "prefix", "neighbour", "neighbour*")
"""`neighbour`: behind the nearest passage of the whole set; `neighbour*`: of those not in the same prompt."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file; none when there is no file. Split at newlines only: texts hold others."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n") if line]


def items_of(path: Path, count: int, max_documents: int) -> list[dict[str, Any]]:
    """Items spread evenly over a file, those whose answer is in a document, at most so many documents."""
    rows = read_lines(path)
    rows = [row for row in rows if row["meta"].get("answer_in") and row["answers"]]
    step = max(1, len(rows) // count)
    chosen = rows[::step][:count]
    return [{**row, "documents": _keep(row, max_documents), "set": path.stem} for row in chosen]


def _keep(row: dict[str, Any], most: int) -> list[dict[str, str]]:
    """Keep the documents that hold the answer, then the others in order, in their own order."""
    documents = row["documents"]
    wanted = [*row["meta"]["answer_in"], *range(len(documents))]
    kept = sorted(list(dict.fromkeys(wanted))[:most])
    return [documents[index] for index in kept]


def text_of(document: dict[str, str]) -> str:
    title, text = document.get("title") or "", document["text"]
    return f"{title}\n{text}" if title else text


def neighbours(
    texts: Sequence[str], items: Sequence[dict[str, Any]], embedder: Path
) -> dict[str, dict[int, dict[str, str]]]:
    """For both neighbour modes: item index -> text -> the text it is compiled behind."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(embedder), device="cpu")
    vectors = torch.tensor(model.encode(list(texts), normalize_embeddings=True))
    place = {text: index for index, text in enumerate(texts)}
    out: dict[str, dict[int, dict[str, str]]] = {"neighbour": {}, "neighbour*": {}}
    for number, item in enumerate(items):
        own = [text_of(d) for d in item["documents"]]
        for mode, banned in (("neighbour", []), ("neighbour*", own)):
            out[mode][number] = {}
            for text in own:
                scores = vectors @ vectors[place[text]]
                scores[[place[t] for t in {text, *banned}]] = -1
                out[mode][number][text] = texts[int(scores.argmax())]
    return out


def measure(
    engine: Engine,
    item: dict[str, Any],
    number: int,
    near: dict[str, dict[int, dict[str, str]]],
    done: set[tuple[str, str, str]],
    modes: Sequence[str] = MODES,
    policies: Sequence[str] = POLICIES,
) -> Iterator[dict[str, Any]]:
    """Yield one row for each policy and mode that is not in `done`."""
    wanted = [
        (mode, policy)
        for mode in modes
        for policy in policies
        if (item["id"], mode, policy) not in done
    ]
    if not wanted:
        return
    answer = engine.tokenizer.ids(item["answers"][0])[:32]
    texts = [text_of(d) for d in item["documents"]]
    prompt = Prompt(item["question"], tuple(Piece(t) for t in texts))
    want, _ = forced(engine, prompt, "full", "isolated", answer)
    for mode, policy in wanted:
        pieces = tuple(
            Piece(t, near[mode][number][t] if mode.startswith("neighbour") else None) for t in texts
        )
        asked = Prompt(item["question"], pieces)
        got, cost = forced(engine, asked, policy, mode.rstrip("*"), answer)
        kl, same = divergence(want, got)
        gold = torch.tensor(answer)[:, None]
        yield {
            "set": item["set"],
            "id": item["id"],
            "mode": mode,
            "policy": policy,
            "kl": kl,
            "top1": same,
            "gold_ll": float(got.gather(1, gold).mean()),
            "gold_ll_full": float(want.gather(1, gold).mean()),
            "share": cost.recomputed / (cost.exact + cost.stitched + cost.recomputed),
            "context": cost.exact + cost.stitched + cost.recomputed,
        }
    engine.pool.drop_idle()


def forced(
    engine: Engine, prompt: Prompt, policy: str, mode: str, answer: Sequence[int]
) -> tuple[torch.Tensor, Any]:
    """Log-probabilities (A, V) of the answer's places under a policy, and the plan with its counts."""
    chosen = parse_policy(policy) if policy != "full" else Full()
    with engine.stitched(prompt, chosen, mode=mode, n_new=len(answer)) as stitched:
        first = stitched.linked.link()
        rest = stitched.linked.step(answer[:-1]) if len(answer) > 1 else first[:0]
        logits = torch.cat((first, rest)).double()
        return logits.log_softmax(-1), stitched.plan


def table(
    rows: Sequence[dict[str, Any]],
    modes: Sequence[str] = MODES,
    policies: Sequence[str] = POLICIES,
) -> str:
    """Mean, median, worst tenth and worst KL, agreement and log-likelihood for each mode and policy."""
    lines = [
        "| compile | policy | KL mean | median | worst 10% | worst | top-1 | gold ll (full) | share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode in modes:
        for policy in policies:
            some = [r for r in rows if r["mode"] == mode and r["policy"] == policy]
            if not some:
                continue
            kl = sorted(r["kl"] for r in some)
            tenth = kl[-math.ceil(len(kl) / 10) :]

            def mean(name: str, some: list[dict[str, Any]] = some) -> float:
                return statistics.fmean(r[name] for r in some)

            lines.append(
                f"| {mode} | {policy} | {statistics.fmean(kl):.3f} | {statistics.median(kl):.3f} "
                f"| {statistics.fmean(tenth):.2f} | {kl[-1]:.2f} | {mean('top1'):.2f} | {mean('gold_ll'):.2f} "
                f"({mean('gold_ll_full'):.2f}) | {mean('share'):.1%} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", help="FILE.jsonl:COUNT")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embedder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-documents", type=int, default=10)
    parser.add_argument(
        "--mode", action="append", choices=MODES, help="only these, may be repeated"
    )
    parser.add_argument("--policy", action="append", help="only these, may be repeated")
    parser.add_argument("--half", choices=("tune", "report"), help="every other item of each set")
    args = parser.parse_args()
    rows = read_lines(args.out)
    modes, policies = args.mode or MODES, args.policy or POLICIES
    done = {(r["id"], r["mode"], r["policy"]) for r in rows}
    engine = Engine.load(args.model, name=args.model.name, kv_dtype="float16")
    for name in args.sets:
        file, _, count = name.rpartition(":")
        items = items_of(Path(file), int(count), args.max_documents)
        if args.half:
            items = items[args.half == "report" :: 2]
        every = read_lines(Path(file))
        own = [text_of(d) for item in items for d in item["documents"]]
        texts = list(
            dict.fromkeys([*own, *(text_of(d) for row in every for d in row["documents"])])
        )
        near = neighbours(texts, items, args.embedder)
        with args.out.open("a") as out:
            for number, item in enumerate(items):
                for row in measure(engine, item, number, near, done, modes, policies):
                    rows.append(row)
                    out.write(json.dumps(row) + "\n")
                out.flush()
                print(f"{item['set']} {number + 1}/{len(items)}", file=sys.stderr)
    for name in dict.fromkeys(row["set"] for row in rows):
        some = [row for row in rows if row["set"] == name]
        print(f"\n{name}: {len({r['id'] for r in some})} items\n\n{table(some, modes, policies)}")
    print(f"\nall: {len({r['id'] for r in rows})} items\n\n{table(rows, modes, policies)}")


if __name__ == "__main__":
    main()
