"""What to search for when a question leans on the one before it: hit@1, hit@5 and MRR of each way (docs/log/chat.md).

The index holds `examples/docs`, chapters of the Rust book, Flask's and SQLite's documentation (`conversations.py`):

    epicrag ingest examples/docs rust-book flask sqlite --index /tmp/talks --chunk-size 192 --no-kv
    python benchmarks/bench_condense.py --index /tmp/talks [--model smollm2-135m]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from conversations import FOLLOW_UPS, NEW_TOPICS, Conversation

from epicrag.condense import condense, is_faithful, leans_on, model_rewriter
from epicrag.pipeline import Pipeline
from epicrag.sessions import Exchange

Way = Callable[[Conversation], str]
DEEP = 10


def turns(talk: Conversation) -> list[Exchange]:
    return [Exchange(talk.first, talk.answer)]


WAYS: dict[str, Way] = {
    "off": lambda talk: talk.second,
    "words": lambda talk: condense(talk.second, turns(talk), "words").query,
    "always the question before": lambda talk: f"{talk.first} {talk.second}",
    "the question before": lambda talk: (
        f"{talk.first} {talk.second}" if leans_on(talk.second) else talk.second
    ),
    "and its answer": lambda talk: (
        f"{talk.first} {talk.answer} {talk.second}" if leans_on(talk.second) else talk.second
    ),
}


def rank(pipeline: Pipeline, query: str, talk: Conversation) -> int:
    """The rank of the first passage that answers; DEEP + 1 where none of the first does."""
    for n, hit in enumerate(pipeline.find(query, k=DEEP).hits, 1):
        text = " ".join(hit.chunk.model_text.split()).lower()
        if hit.chunk.document.endswith(talk.path) and talk.needle.lower() in text:
            return n
    return DEEP + 1


def line(name: str, ranks: Sequence[int]) -> str:
    mrr = sum(1 / n for n in ranks if n <= DEEP) / len(ranks)
    first, five = (sum(n <= most for n in ranks) for most in (1, 5))
    return f"| {name} | {first} | {five} of {len(ranks)} | {mrr:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", required=True)
    parser.add_argument("--model", help="rewrites questions, too: some seconds each on a CPU")
    chosen = parser.parse_args()
    flags = {"index": chosen.index, **({"model": chosen.model} if chosen.model else {})}
    with Pipeline.open(**flags) as pipeline:
        ways = dict(WAYS)
        if chosen.model:
            written: dict[str, str] = {}
            rewrite = model_rewriter(pipeline.engine)

            def once(question: str, before: Sequence[Exchange]) -> str:
                if question not in written:
                    written[question] = rewrite(question, before)
                return written[question]

            ways["as the model rewrites it"] = lambda talk: (
                once(talk.second, turns(talk)) or talk.second
            )
            ways["model"] = lambda talk: condense(talk.second, turns(talk), "model", once).query
        for kind, talks in (("follow-ups", FOLLOW_UPS), ("new topics", NEW_TOPICS)):
            n_leaning = sum(bool(leans_on(talk.second)) for talk in talks)
            print(f"\n{kind}: {n_leaning} of {len(talks)} are taken for follow-ups\n")
            for name, way in ways.items():
                print(line(name, [rank(pipeline, way(talk), talk) for talk in talks]), flush=True)
        if chosen.model:
            by_question = {talk.second: talk for talk in (*FOLLOW_UPS, *NEW_TOPICS)}
            good = sum(
                is_faithful(text, question, turns(by_question[question]))
                for question, text in written.items()
            )
            print(f"\nof {len(written)} rewritings {good} kept all and made up nothing")


if __name__ == "__main__":
    main()
