"""Ask the example documents a question through LlamaIndex: answer, sources and what it cost.

    python examples/llamaindex_query.py
    python examples/llamaindex_query.py "How long is the warranty?"

The first run converts the packaged model and computes the KV of the documents, which takes some minutes on
a small machine; later runs reuse both. The index is a folder of its own under the epicrag home.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from epicrag import Pipeline, query_engine
from epicrag.config import load_config
from epicrag.pipeline import Event

DOCS = Path(__file__).parent / "docs"
QUESTION = "How long is the warranty?"


def place(about: dict[str, Any]) -> str:
    """Where a passage stands, from the metadata of its node."""
    if "page" in about:
        return f"{about['file_name']}, page {about['page']}"
    first, last = about["lines"]
    return f"{about['file_name']}, lines {first}–{last}"


def tell(event: Event) -> None:
    """Print how far the ingest is: a line for each file, and one for each batch of computed KV."""
    if event.report:
        print(f"  {event.report.status}: {event.report.path}", flush=True)
    elif event.stage == "kv":
        print(f"  KV: {event.done:,} of {event.total:,} tokens", flush=True)
    elif event.stage == "note":
        print(f"  note: {event.message}", flush=True)


def main(question: str) -> None:
    index = load_config().home / "indexes" / "examples"
    with Pipeline.open(create=True, index=index, say=print) as pipeline:
        print(f"Bringing the index up to date with {DOCS.name}/ …", flush=True)
        pipeline.ingest([DOCS], progress=tell)

        print(f"\nAsking: {question}\n", flush=True)
        engine = query_engine(pipeline, streaming=True)
        response: Any = engine.query(question)  # a StreamingResponse
        for delta in response.response_gen:
            print(delta, end="", flush=True)
        print("\n\nRead (* = the answer cites it):")
        for n, found in enumerate(response.source_nodes, 1):
            mark = "*" if n in response.metadata["cited"] else " "
            print(f"{mark}[{n}] {place(found.node.metadata)}, score {found.score:.2f}")

        for note in response.metadata["notes"]:
            print(f"note: {note}")

        receipt = response.metadata["receipt"]
        if receipt:  # there is none when nothing relevant was found and no model was asked
            reused = receipt["exact"] + receipt["stitched"]
            print(
                f"\nreused {reused} of {receipt['context_tokens']} context tokens, "
                f"first token after {receipt['ms']['first_token']:.0f} ms, policy {receipt['policy']}"
            )


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or QUESTION)
