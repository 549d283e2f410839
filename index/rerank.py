"""A cross-encoder over the first passages: it reads question and passage together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epicrag.errors import DeviceError, EpicragError

DEPTH = 24
"""Passages that are read again: each costs about what embedding it costs."""
_BATCH = 32
_OVERLAP = 32  # tokens: a fact that one window cuts stands whole in its neighbour
_LONGEST_QUESTION = 0.5  # of what the model reads at once; the rest is for the passage
_MOST_TOKENS = 512  # read at once, where the model does not say how many it can


class CrossReranker:
    """A cross-encoder of sentence-transformers in a local folder. Nothing is cut off: a long passage is
    read in windows, and its best one speaks for it."""

    depth = DEPTH

    def __init__(self, path: Path, name: str, *, device: str = "auto") -> None:
        self.name = name
        self._model = _load(path, device)
        self._tokenizer: Any = self._model.tokenizer
        # The newer name first: asking for the old one warns where both are known.
        longest = getattr(self._model, "max_seq_length", None) or getattr(
            self._model, "max_length", None
        )
        self._room = int(min(longest or _MOST_TOKENS, 1 << 16))

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, of its best window; a higher one is better.

        EpicragError: the model gives no number, or more than one for a pair.
        """
        query = self._cut(query)
        windows = [list(self._windows(query, _clean(text))) for text in texts]
        pairs = [(query, window) for group in windows for window in group]
        flat = self._predict(pairs)
        ends = np.cumsum([len(group) for group in windows])[:-1]
        return [float(group.max()) for group in np.split(flat, ends)] if texts else []

    def _predict(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        import torch

        try:
            scores = self._model.predict(pairs, batch_size=_BATCH, show_progress_bar=False)
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                "no memory is left for the reranker", "run it with --device cpu, or --no-rerank"
            ) from error
        array = np.asarray(scores, np.float64)
        if array.shape != (len(pairs),) or not np.isfinite(array).all():
            raise EpicragError(
                f"the reranker {self.name} gives no single finite score for question and passage",
                "choose a cross-encoder with one label, or leave it out with --no-rerank",
            )
        return array

    def _cut(self, query: str) -> str:
        """Return the beginning of a question that leaves room for a passage beside it."""
        query, spans = _clean(query), self._spans(_clean(query))
        most = max(int(self._room * _LONGEST_QUESTION), 1)
        return query if len(spans) <= most else query[: spans[most - 1][1]]

    def _windows(self, query: str, text: str) -> Iterator[str]:
        """Yield overlapping slices of a text that the model reads whole beside the question."""
        special = int(self._tokenizer.num_special_tokens_to_add(pair=True))
        room = max(self._room - special - len(self._spans(query)), 8)
        spans = self._spans(text)
        step = max(room - _OVERLAP, (room + 1) // 2)
        for first in range(0, max(len(spans), 1), step):
            last = min(first + room, len(spans))
            start = spans[first][0] if first else 0
            yield text[start : spans[last - 1][1] if last < len(spans) else len(text)]
            if last >= len(spans):
                return

    def _spans(self, text: str) -> list[tuple[int, int]]:
        encoding = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=False,
            verbose=False,
        )
        return list(encoding["offset_mapping"])


def _load(path: Path, device: str) -> Any:
    """Load quietly and without the network."""
    from sentence_transformers import CrossEncoder

    from epicrag.index.encoder import quiet

    chosen = None if device == "auto" else device
    try:
        with quiet():
            return CrossEncoder(str(path), device=chosen, local_files_only=True)
    except Exception as error:  # the libraries raise whatever the broken file suggests to them
        raise EpicragError(
            f"the reranker at {path} cannot be loaded: {error}",
            "choose another with --rerank, or leave it out with --no-rerank",
        ) from error


def _clean(text: str) -> str:
    """Return text a tokenizer takes: lone surrogates become "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")
