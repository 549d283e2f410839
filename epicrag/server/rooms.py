"""What a server keeps beside its pipeline: chunks that clients bring along, and how they are found again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.errors import EpicragError

if TYPE_CHECKING:
    from epicrag.index.kvstore import KVStore
    from epicrag.pipeline import Pipeline
    from epicrag.server.state import State

_log = logging.getLogger("epicrag")


def furnish(state: State, pipeline: Pipeline, folder: Path, store: KVStore | None) -> None:
    """Open the book of chunks in `folder`, its KV in `store`, and look for known chunks in plain text.

    Where the book cannot be opened, none is kept, and the log says why. To be called before `state.ready`;
    `state.close` closes it all.
    """
    from epicrag.brought import Bringer
    from epicrag.chunkbook import BookLimits, ChunkBook
    from epicrag.recognise import Recogniser

    engine, counter = pipeline.engine, pipeline.counter
    limits = BookLimits(max_chunk_tokens=engine.context_window)
    index = pipeline.config.index if state.has_index else None
    book: ChunkBook | None = None
    try:
        book = ChunkBook.open(folder, engine, counter, store, limits)
        state.chunks = book
        state.bringer = Bringer(book, counter, state.settings.chunk_tokens)
    except (EpicragError, OSError) as error:  # the index and the model can be served all the same
        _log.warning("no chunks of clients are kept: %s", error)
    state.recogniser = Recogniser(engine.tokenizer, index=index, book=book)
    state.recogniser.prepare()
