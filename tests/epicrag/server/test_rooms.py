"""What a server keeps beside its pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from epicrag.server.rooms import furnish
from epicrag.server.state import State


def test_chunks_are_kept_and_found_again_in_plain_text(live: Any, tmp_path: Path):
    import httpx

    furnish(live.state, live.pipeline, tmp_path / "book", None)
    try:
        text = "The lighthouse keeper feeds the gulls at seven every morning. " * 3
        made = httpx.post(live.url + "/v1/chunks", json={"text": text}, timeout=60).json()
        assert made["object"] == "chunk"
        asked = {"prompt": f"Read this: {text}", "model": "tiny", "max_tokens": 2}
        answer = httpx.post(live.url + "/v1/completions", json=asked, timeout=60).json()
        assert (
            answer["epicrag"]["receipt"]["context_tokens"] >= 100
        )  # the system prompt is none here
        counted = httpx.get(live.url + "/metrics").text
        (line,) = [
            x for x in counted.splitlines() if x.startswith("epicrag_recognised_chars_total")
        ]
        assert float(line.split()[1]) >= len(text) // 2
    finally:
        live.state.close()


def test_a_folder_that_cannot_be_had_leaves_the_rest_served(live: Any, tmp_path: Path, caplog: Any):
    (tmp_path / "book").write_text("a file")
    state = State(has_index=False)
    furnish(state, live.pipeline, tmp_path / "book", None)
    assert state.chunks is None
    assert state.recogniser is not None
    assert "no chunks of clients are kept" in caplog.text
    state.close()
