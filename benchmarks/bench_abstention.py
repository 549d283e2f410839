"""Telling questions that an index answers from those that it does not: which features do, and at what price.

Every question of the sets is asked three times: of its own set (answerable), of its own set without its own
documents (hard: the same subject, and no answer), and of another set (foreign). The rule of `epicrag.index.relevance`
is fitted on one half of the questions and reported on the other, beside the rule as it stands and beside a fixed
cosine: ROC AUC, false abstentions, missed abstentions.

    python benchmarks/bench_abstention.py SET.jsonl SET.jsonl … [--questions 40]

Prints tables, and one JSON object on the last line. The sets and the cache are those of bench_retrieval.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_retrieval import Bench, Task, read_task
from numpy.typing import NDArray

from epicrag.index.catalog import Catalog
from epicrag.index.relevance import BIAS, COSINE, SHARE, THRESHOLD, judged
from epicrag.index.retrieve import Request, search
from epicrag.index.vectors import VectorIndex

FEATURES = ("cosine", "words")


@dataclass(frozen=True, slots=True)
class Without:
    """A filter that leaves some documents out."""

    paths: frozenset[str]

    def rows(self, catalog: Catalog) -> frozenset[int]:
        rows = catalog.chunk_facts()
        return frozenset(row for row, facts in rows if facts.path not in self.paths)

    def allows(self, catalog: Catalog, row: int) -> bool:
        return True


def ask(bench: Bench, index: tuple[Catalog, VectorIndex], question: str, out: Any = None) -> Any:
    """The features of one question."""
    catalog, vectors = index
    hits = search(catalog, vectors, bench.embedder, Request(question, filter=out))
    features = judged(catalog, question, hits).features
    return [features.get(name, 0.0) for name in FEATURES]


def rows_of(bench: Bench, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    indexes = [bench.index(task) for task in tasks]
    rows = []
    for n, task in enumerate(tasks):
        for at, question in enumerate(task.questions):
            other = (n + 1 + at % (len(tasks) - 1)) % len(tasks) if len(tasks) > 1 else None
            kinds = {
                "answerable": ask(bench, indexes[n], question.text),
                "hard": ask(bench, indexes[n], question.text, Without(question.own)),
            }
            if other is not None:
                kinds["foreign"] = ask(bench, indexes[other], question.text)
            half = (at + n) % 2
            rows += [
                {"set": task.name, "half": half, "kind": kind, "x": x} for kind, x in kinds.items()
            ]
    return rows


def fit(x: NDArray[np.float64], y: NDArray[np.float64], ridge: float = 0.1) -> NDArray[np.float64]:
    """Logistic regression by Newton's method: the bias, then a weight for each feature."""
    x = np.column_stack([np.ones(len(x)), x])
    weights = np.zeros(x.shape[1])
    penalty = ridge * np.diag([0.0] + [1.0] * (x.shape[1] - 1))
    for _ in range(50):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (p - y) + penalty @ weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x + penalty + 1e-9 * np.eye(x.shape[1])
        weights = weights - np.linalg.solve(hessian, gradient)
    return weights


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -50, 50))))


def auc(scores: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    good, bad = scores[y > 0][:, None], scores[y == 0][None]
    return float((good > bad).mean() + (good == bad).mean() / 2)


def report(
    name: str, scores: NDArray[np.float64], kinds: NDArray[np.str_], threshold: float
) -> dict[str, Any]:
    y = (kinds == "answerable").astype(float)
    row: dict[str, Any] = {"rule": name, "auc": auc(scores, y)}
    for kind in ("hard", "foreign"):
        some = (kinds == kind) | (y > 0)
        row[f"auc_{kind}"] = auc(scores[some], y[some])
        row[f"missed_{kind}"] = float((scores[kinds == kind] >= threshold).mean())
    row["false"] = float((scores[y > 0] < threshold).mean())
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    keys = ("auc", "auc_hard", "auc_foreign", "false", "missed_hard", "missed_foreign")
    head = "| rule | AUC | of hard | of foreign | false abst. | missed hard | missed foreign |"
    lines = [head, "|---" * 7 + "|"]
    for row in rows:
        cells = [f"{row[key]:.1%}" if "auc" not in key else f"{row[key]:.3f}" for key in keys]
        lines.append(f"| {row['rule']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--questions", type=int, default=40, help="of each set, at most")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "epicrag-retrieval"
    )
    args = parser.parse_args()
    if len(args.sets) < 2:
        parser.error("give two sets or more: foreign questions come from another one")
    tasks = [read_task(path, args.questions) for path in args.sets]
    rows = rows_of(Bench(args.cache, "model_text"), tasks)
    x = np.array([row["x"] for row in rows])
    kinds = np.array([row["kind"] for row in rows])
    is_test = np.array([row["half"] == 1 for row in rows])
    weights = fit(x[~is_test], (kinds[~is_test] == "answerable").astype(float))
    seen, kinds = x[is_test], kinds[is_test]
    fitted = _sigmoid(weights[0] + seen @ weights[1:])
    shipped = _sigmoid(BIAS + seen @ np.array([COSINE, SHARE]))
    found = [
        report("cosine >= 0.2", seen[:, 0], kinds, 0.2),
        report("cosine >= 0.4", seen[:, 0], kinds, 0.4),
        *(report(f"fitted >= {t}", fitted, kinds, t) for t in (0.2, 0.3, 0.5)),
        report(f"as shipped >= {THRESHOLD}", shipped, kinds, THRESHOLD),
    ]
    print(
        f"{len(kinds)} questions; bias and weights of {FEATURES}: {np.round(weights, 2).tolist()}"
    )
    print(table(found))
    print(json.dumps({"weights": weights.tolist(), "rows": found}))


if __name__ == "__main__":
    main()
