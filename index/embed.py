"""Text to unit vectors, with nothing cut off: long text is embedded in windows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import EpicragError
from epicrag.index.encoder import Encoder, load_encoder
from epicrag.index.files import read_json

_OVERLAP_TOKENS = 16  # a fact that one window cuts stands whole in its neighbour
_SLACK_TOKENS = 8  # a slice may take a few tokens more than it took within its text
_log = logging.getLogger("epicrag")


class Embedder(Protocol):
    """What retrieval needs. Equal fingerprints promise equal vectors."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dim(self) -> int: ...

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the (dim,) unit vector of a question."""
        ...

    def passages(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return (W, dim) unit rows for each text, one for each window of it.

        Rows that are not finite are left out: W is 0 where none is left.
        """
        ...


class SentenceEmbedder:
    """A sentence-transformers model in a local folder.

    The prefixes for questions and passages come from the model's own configuration, or from
    `prompts` ({"query": …, "document": …}) where its model card names some that the configuration
    does not.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        prompts: Mapping[str, str] | None = None,
        device: str = "auto",
    ) -> None:
        self.name = name
        self._encoder = load_encoder(path, device)
        self._query_prompt, self._document_prompt = _prompts(path, prompts or {})
        self.dim = self._encoder.encode(["dimension"], "").shape[1]
        self.fingerprint = _fingerprint(
            name=name,
            dim=self.dim,
            weights=_weights_digest(path),
            length=self._encoder.max_tokens,
            pooling=_module_configs(path),
            prompts=[self._query_prompt, self._document_prompt],
            windows=[_OVERLAP_TOKENS, _SLACK_TOKENS],
            normalised=True,
        )

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the (dim,) unit vector of a question: of its first window, if it is that long."""
        vector: NDArray[np.float32] = self._encoder.encode([_clean(text)], self._query_prompt)[0]
        if not np.isfinite(vector).all():
            raise EpicragError(
                f"the embedder {self.name} gave no finite vector for the question",
                "put it in other words, or choose another embedder with --embed-model",
            )
        return vector

    def passages(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return (W, dim) unit rows for each text; rows that are not finite are left out."""
        windows = [
            list(windows_of(_clean(text), self._encoder, self._document_prompt)) for text in texts
        ]
        flat = [window for group in windows for window in group]
        vectors = self._encoder.encode(flat, self._document_prompt)
        ends = np.cumsum([len(group) for group in windows])[:-1]
        return [_finite(group) for group in np.split(vectors, ends)] if texts else []

    def count(self, text: str) -> int:
        """How many tokens the model takes a text for, those around it left out."""
        return len(_spans(self._encoder.tokenizer, _clean(text)))


def windows_of(text: str, encoder: Encoder, prompt: str, size: int | None = None) -> Iterator[str]:
    """Yield overlapping slices that together are `text` and that the model reads whole."""
    room = _room(encoder, prompt)
    spans = _spans(encoder.tokenizer, text) if room else []
    if room is None or len(spans) <= room or size == 1:
        yield text
        return
    size = min(size or room, max(room - _SLACK_TOKENS, 1))
    step = max(size - _OVERLAP_TOKENS, (size + 1) // 2)
    for first in range(0, len(spans), step):
        last = min(first + size, len(spans))
        start = spans[first][0] if first else 0
        end = spans[last - 1][1] if last < len(spans) else len(text)
        # The slice may take more tokens than it took within its text: then it is cut again.
        yield from windows_of(text[start:end], encoder, prompt, max(size // 2, 1))
        if last == len(spans):
            return


def _room(encoder: Encoder, prompt: str) -> int | None:
    """Return how many tokens of a text the model reads behind the prompt."""
    if encoder.max_tokens is None:
        return None
    special = int(encoder.tokenizer.num_special_tokens_to_add())
    return max(encoder.max_tokens - special - len(_spans(encoder.tokenizer, prompt)), 1)


def _spans(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Return the characters [start, end) of each token of a text, special tokens left out."""
    encoding = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )
    return list(encoding["offset_mapping"])


def _finite(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    good = np.isfinite(rows).all(axis=1)
    if not good.all():
        _log.warning("the embedder gave %d vectors that are not finite; left out", (~good).sum())
    kept: NDArray[np.float32] = rows[good]
    return kept


def _clean(text: str) -> str:
    """Return text a tokenizer takes: lone surrogates, as in a broken argument, become "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _prompts(path: Path, given: Mapping[str, str]) -> tuple[str, str]:
    """Return the prefixes of questions and of passages, chosen as sentence-transformers does."""
    config = read_json(path / "config_sentence_transformers.json") or {}
    known = {**(config.get("prompts") or {}), **given}
    default = known.get(config.get("default_prompt_name") or "", "")
    passage = [known[name] for name in ("document", "passage", "corpus") if known.get(name)]
    return known.get("query") or default, (passage or [default])[0]


def _fingerprint(**facts: object) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())


def _weights_digest(path: Path) -> str:
    """Return a digest of the weights and the vocabulary, by content: a copy elsewhere is the same."""
    import xxhash

    digest = xxhash.xxh3_128()
    weights = sorted(path.rglob("*.safetensors")) or sorted(path.rglob("*.bin"))
    vocabulary = [path / "tokenizer.json"] if (path / "tokenizer.json").exists() else []
    vocabulary = vocabulary or sorted(path.glob("*vocab*")) + sorted(path.glob("*.model"))
    for file in weights + vocabulary:
        with open(file, "rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _module_configs(path: Path) -> list[object]:
    """Return what stands behind the transformer: pooling, projections, normalisation."""
    modules = read_json(path / "modules.json") or []
    return [
        [str(module["type"]).rsplit(".", 1)[-1], read_json(path / module["path"] / "config.json")]
        for module in modules[1:]
    ]
