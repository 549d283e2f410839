"""Which passages are found: dense, by words and both, on question sets and on a judged collection.

A question set is a file of JSON lines with `question`, `documents` ([{title, text}]) and `answers`: the documents
of all its questions are indexed together, and a passage counts as right when it holds an answer. A judged
collection is two files, NAME_docs.jsonl (id, title, text) and NAME_queries.jsonl (query, relevant: {id: grade},
1 the best): nDCG@10 with gain 5 - grade, and 1 for what is judged in any other way.

    python benchmarks/bench_retrieval.py SET.jsonl … NAME_docs.jsonl [--questions 100] [--weights 1,1 1,0.5]

Prints a table, and one JSON object on the last line. Indexes are kept in --cache, so that the second run embeds
nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epicrag.config import load_config
from epicrag.connectors.split import split
from epicrag.index.catalog import Catalog
from epicrag.index.embed import SentenceEmbedder
from epicrag.index.retrieve import Request, search
from epicrag.index.vectors import VectorIndex
from epicrag.models import Models
from epicrag.serving.tokenizer import UnitTokenizer
from epicrag.types import Document, Hit

BATCH = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is right: the gain of each document by its path, or the answers."""

    text: str
    gains: Mapping[str, float]
    answers: tuple[str, ...]
    own: frozenset[str] = frozenset()
    """The documents that come with it, by their paths."""


@dataclass(frozen=True, slots=True)
class Task:
    """Documents to be indexed together, and what is asked of them."""

    name: str
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


def read_task(path: Path, n_questions: int) -> Task:
    """Read a question set or a judged collection."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not path.stem.endswith("_docs"):
        return _question_set(path.stem, lines, n_questions)
    name = path.stem.removesuffix("_docs")
    queries = path.with_name(f"{name}_queries.jsonl").read_text(encoding="utf-8").splitlines()
    documents = tuple(document(str(line["id"]), line["title"], line["text"]) for line in lines)
    return Task(name, documents, tuple(_judged(json.loads(line)) for line in queries))


def _judged(line: dict[str, Any]) -> Question:
    gains = {
        str(at): float(5 - grade) if 1 <= grade <= 4 else 1.0
        for at, grade in line["relevant"].items()
    }
    return Question(line["query"], gains, ())


def _question_set(name: str, lines: list[dict[str, Any]], n_questions: int) -> Task:
    usable = [line for line in lines if line["meta"].get("answer_in")][:n_questions]
    documents, questions = {}, []
    for line in usable:
        own = {_key(one): one for one in line["documents"]}
        for key, one in own.items():
            documents[key] = document(key, one.get("title"), one["text"])
        answers = tuple(map(str, line["answers"]))
        questions.append(Question(line["question"], {}, answers, frozenset(own)))
    return Task(name, tuple(documents.values()), tuple(questions))


def _key(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def document(path: str, title: str | None, text: str) -> Document:
    return Document(path, text, hashlib.sha256(text.encode()).hexdigest(), title=title or None)


class Bench:
    """The models, and the place where indexes are kept."""

    def __init__(self, cache: Path, variant: str) -> None:
        config = load_config()
        models = Models(config)
        self.embedder = SentenceEmbedder(models.ensure(config.embed_model), config.embed_model)
        self.counter = UnitTokenizer.load(models.ensure(config.model))
        self.chunk_tokens, self.cache, self.variant = config.chunk_tokens, cache, variant

    def index(self, task: Task) -> tuple[Catalog, VectorIndex]:
        """Open the index of a task, made first where it is not kept yet."""
        facts = [
            task.name,
            len(task.documents),
            self.variant,
            self.embedder.fingerprint,
            self.chunk_tokens,
        ]
        folder = self.cache / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        catalog = Catalog.open(folder, create=True)
        for one in task.documents:
            if catalog.document(one.path) is None and one.text.strip():
                self._put(catalog, one)
        return catalog, VectorIndex.open(catalog, folder)

    def _put(self, catalog: Catalog, one: Document) -> None:
        chunks = split(one, self.counter, chunk_tokens=self.chunk_tokens)
        texts = [chunk.text if self.variant == "text" else chunk.model_text for chunk in chunks]
        catalog.put_document(one, chunks, self.embedder.passages(texts))


def configurations(weights: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "dense", {"mode": "dense"}
    yield "words", {"mode": "words"}
    for pair in weights:
        dense, words = map(float, pair.split(","))
        yield f"hybrid {pair}", {"weights": {"dense": dense, "words": words}}


def measure(bench: Bench, task: Task, weights: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each way to search."""
    catalog, vectors = bench.index(task)
    rows = []
    with catalog:
        chunks = catalog.counts().chunks
        for name, options in configurations(weights):
            scores: list[dict[str, float]] = []
            for question in task.questions:
                began = time.perf_counter()
                hits = search(
                    catalog, vectors, bench.embedder, Request(question.text, 10, **options)
                )
                spent = (time.perf_counter() - began) * 1000
                scores.append({**score(hits, question.gains, question.answers), "ms": spent})
            means = {key: statistics.mean(one[key] for one in scores) for key in scores[0]}
            means["ms"] = statistics.median(one["ms"] for one in scores)
            rows.append(
                {
                    "set": task.name,
                    "chunks": chunks,
                    "questions": len(scores),
                    "search": name,
                    **means,
                }
            )
    return rows


def score(
    hits: Sequence[Hit], gains: Mapping[str, float], answers: Sequence[str]
) -> dict[str, float]:
    """nDCG@10 where documents are judged; else whether an answer is in the first 5, and 1 / its rank."""
    if gains:
        found = [gains.get(hit.chunk.document, 0.0) for hit in hits]
        return {"ndcg10": _dcg(found) / _dcg(sorted(gains.values(), reverse=True)[:10])}
    right = [any(holds(hit.chunk.text, answer) for answer in answers) for hit in hits]
    rank = right.index(True) + 1 if any(right) else 0
    return {"recall5": float(0 < rank <= 5), "mrr10": 1 / rank if rank else 0.0}


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def holds(text: str, answer: str) -> bool:
    """Whether an answer stands in a text, case and punctuation apart: whole words where there are words."""
    plain, wanted = _plain(text), _plain(answer)
    if not wanted:
        return False
    is_spaced = wanted.isascii()
    return (
        f" {wanted} " in f" {plain} "
        if is_spaced
        else wanted.replace(" ", "") in plain.replace(" ", "")
    )


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    signs = (
        sign if sign.isalnum() or unicodedata.category(sign)[0] == "M" else " " for sign in folded
    )
    return " ".join("".join(signs).split())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| set | chunks | questions | search | recall@5 | MRR@10 | nDCG@10 | ms |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        cells = [f"{row[key]:.3f}" if key in row else "" for key in ("recall5", "mrr10", "ndcg10")]
        head = (row["set"], row["chunks"], row["questions"], row["search"])
        lines.append("| " + " | ".join([*map(str, head), *cells, f"{row['ms']:.0f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--questions", type=int, default=100, help="of each set, at most")
    parser.add_argument(
        "--weights", nargs="*", default=["1,1", "1,0.5", "0.5,1"], help="dense,words"
    )
    parser.add_argument("--embed", choices=["model_text", "text"], default="model_text")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "epicrag-retrieval"
    )
    args = parser.parse_args()
    bench = Bench(args.cache, args.embed)
    rows: list[dict[str, Any]] = []
    for path in args.sets:
        rows += measure(bench, read_task(path, args.questions), args.weights)
        print(table(rows[-2 - len(args.weights) :]), flush=True)
    print("\n" + table(rows))
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
