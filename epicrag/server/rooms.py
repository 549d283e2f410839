"""What a server keeps beside its pipeline: chunks that clients bring along, and how they are found again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.index.kvstore import KVStore
    from epicrag.pipeline import Pipeline
    from epicrag.server.state import State


def furnish(state: State, pipeline: Pipeline, folder: Path, store: KVStore | None) -> None:
    """Open the book of chunks in `folder`, its KV in `store`, and look for known chunks in plain text.

    To be called before `state.ready`; `state.close` closes it all.
    """
    from epicrag.brought import Bringer
    from epicrag.chunkbook import BookLimits, ChunkBook
    from epicrag.recognise import Recogniser

    engine = pipeline.engine
    limits = BookLimits(max_chunk_tokens=engine.context_window)
    book = ChunkBook.open(folder, engine, pipeline.counter, store, limits)
    index = pipeline.config.index if state.has_index else None
    state.chunks = book
    state.bringer = Bringer(book, pipeline.counter, state.settings.chunk_tokens)
    state.recogniser = Recogniser(engine.tokenizer, index=index, book=book)
    state.recogniser.prepare()
