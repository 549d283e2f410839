"""Ask the example documents a question through LlamaIndex: answer, sources and what it cost.

    python examples/llamaindex_query.py
    python examples/llamaindex_query.py "How long is the warranty?"

The first run converts the packaged model and compiles the documents; later runs reuse both. The index is
a folder of its own under the epicrag home.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from epicrag import Pipeline, query_engine
from epicrag.config import load_config

DOCS = Path(__file__).parent / "docs"
QUESTION = "How long does a fresh pair of batteries last?"


def place(about: dict[str, Any]) -> str:
    """Where a passage stands, from the metadata of its node."""
    if "page" in about:
        return f"{about['file_name']}, page {about['page']}"
    first, last = about["lines"]
    return f"{about['file_name']}, lines {first}–{last}"


def main(question: str) -> None:
    index = load_config().home / "indexes" / "examples"
    with Pipeline.open(create=True, index=index, say=print) as pipeline:
        pipeline.ingest([DOCS])

        # The packaged model is tiny: two passages are as many as it follows, and it does not know when to stop.
        engine = query_engine(pipeline, streaming=True, top_k=2, max_tokens=48)
        response: Any = engine.query(question)  # a StreamingResponse
        for delta in response.response_gen:
            print(delta, end="", flush=True)
        print("\n")

        for n, found in enumerate(response.source_nodes, 1):
            mark = "*" if n in response.metadata["cited"] else " "
            print(f"{mark}[{n}] {place(found.node.metadata)}, score {found.score:.2f}")

        receipt = response.metadata["receipt"]
        if receipt:  # there is none when nothing relevant was found and no model was asked
            reused = receipt["exact"] + receipt["stitched"]
            print(
                f"\nreused {reused} of {receipt['context_tokens']} context tokens, "
                f"first token after {receipt['ms']['first_token']:.0f} ms, policy {receipt['policy']}"
            )


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or QUESTION)
