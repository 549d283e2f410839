"""An embedder without a model, and documents without files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from epicrag.index.catalog import Catalog
from epicrag.types import Chunk, Document, Place

WINDOW_WORDS = 40


class WordEmbedder:
    """Texts that share words are near: the sum of a fixed random vector for each word."""

    def __init__(self, name: str = "words", dim: int = 64) -> None:
        self.name, self.dim = name, dim
        self.fingerprint = f"{name}-{dim}"
        self.seen: list[str] = []

    def query(self, text: str) -> NDArray[np.float32]:
        return self._embed(text.split())

    def passages(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        self.seen += texts
        return [np.stack([self._embed(words) for words in _windows(text)]) for text in texts]

    def _embed(self, words: Sequence[str]) -> NDArray[np.float32]:
        total = np.sum([self._word(word) for word in words or [""]], axis=0)
        return (total / np.linalg.norm(total)).astype(np.float32)

    def _word(self, word: str) -> NDArray[np.float64]:
        seed = int.from_bytes(hashlib.sha256((self.name + word).encode()).digest()[:8], "big")
        return np.random.default_rng(seed).standard_normal(self.dim)


def _windows(text: str) -> list[list[str]]:
    words = text.split()
    return [words[i : i + WINDOW_WORDS] for i in range(0, max(len(words), 1), WINDOW_WORDS)]


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def new_embedder() -> type[WordEmbedder]:
    return WordEmbedder


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog.open(tmp_path, create=True) as catalog:
        yield catalog


Make = Callable[..., tuple[Document, list[Chunk]]]


@pytest.fixture
def make() -> Make:
    """Return a function from a path and the texts of its chunks to a document and its chunks."""

    def build(path: str, *texts: str, title: str | None = None) -> tuple[Document, list[Chunk]]:
        whole = "".join(texts)
        digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
        chunks, start = [], 0
        for ordinal, text in enumerate(texts):
            place = Place(page=ordinal + 1, lines=(ordinal, ordinal + 2), heading="A > B")
            span = (start, start + len(text))
            chunks.append(Chunk(path, ordinal, *span, text, title, place, len(text.split())))
            start += len(text)
        return Document(path, whole, digest, title=title), chunks

    return build


@pytest.fixture
def put(embedder: WordEmbedder, make: Make) -> Callable[..., list[int]]:
    """Return a function that embeds texts and puts them into a catalog as one document."""

    def do(catalog: Catalog, path: str, *texts: str) -> list[int]:
        document, chunks = make(path, *texts)
        vectors = embedder.passages([chunk.text for chunk in chunks])
        return catalog.put_document(document, chunks, vectors)

    return do
