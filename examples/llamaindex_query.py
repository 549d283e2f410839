"""Ask the example documents a question through LlamaIndex: answer, sources and what it cost.

    python examples/llamaindex_query.py
    python examples/llamaindex_query.py "How long is the warranty?"

The first run converts the packaged model and compiles the documents; later runs reuse both. The index is
a folder of its own under the epicrag home.
"""

from __future__ import annotations

import sys
from pathlib import Path

from epicrag import Pipeline, query_engine
from epicrag.config import load_config

DOCS = Path(__file__).parent / "docs"
QUESTION = "How long does a fresh pair of batteries last?"


def main(question: str) -> None:
    index = load_config().home / "indexes" / "examples"
    with Pipeline.open(create=True, index=index, say=lambda line: print(line)) as pipeline:
        pipeline.ingest([DOCS])

        engine = query_engine(pipeline, streaming=True)
        response = engine.query(question)
        for delta in response.response_gen:
            print(delta, end="", flush=True)
        print("\n")

        for n, found in enumerate(response.source_nodes, 1):
            about, mark = found.node.metadata, "*" if n in response.metadata["cited"] else " "
            place = f"page {about['page']}" if "page" in about else f"lines {about.get('lines')}"
            print(f"{mark}[{n}] {about['file_name']}, {place}, score {found.score:.2f}")

        receipt = response.metadata["receipt"]
        if receipt:  # there is none when nothing relevant was found and no model was asked
            reused = receipt["exact"] + receipt["stitched"]
            print(
                f"\nreused {reused} of {receipt['context_tokens']} context tokens, "
                f"first token after {receipt['ms']['first_token']:.0f} ms, policy {receipt['policy']}"
            )


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or QUESTION)
