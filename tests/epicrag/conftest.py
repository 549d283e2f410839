"""A pipeline over real rooms, with a stub embedder and a stub engine in place of the models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from epicrag.config import Config
from epicrag.pipeline import Pipeline
from epicrag.types import Receipt, Timings, Usage

DIM = 256


class WordCounter:
    """A token is a word with the white space after it."""

    def count(self, text: str) -> int:
        return len(self.ends(text))

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(token for token, _ in self.tokens(text))

    def tokens(self, text: str, *, behind: bool = False) -> Sequence[tuple[int, int]]:
        ends = self.ends(text)
        words = (text[low:high] for low, high in pairwise([0, *ends]))
        return [(crc32(word.encode()), end) for word, end in zip(words, ends, strict=True)]

    def ends(self, text: str) -> Sequence[int]:
        ends = [found.end() for found in re.finditer(r"\S+\s*|^\s+", text)]
        return ends if not text or (ends and ends[-1] == len(text)) else [*ends, len(text)]


@dataclass
class StubEmbedder:
    """Bags of words, hashed: texts with common words are near. Raises on a text that holds `poison`."""

    name: str = "stub"
    fingerprint: str = "stub-1"
    dim: int = DIM
    poison: str = ""
    embedded: list[str] = field(default_factory=list)

    def query(self, text: str) -> np.ndarray:
        vector = np.zeros(self.dim, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            digest = hashlib.sha256(word.encode()).digest()
            vector[int.from_bytes(digest[:4]) % self.dim] += 1.0
        if not vector.any():
            vector[0] = 1.0
        return vector / np.linalg.norm(vector)

    def passages(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            if self.poison and self.poison in text:
                raise KeyboardInterrupt if self.poison == "^C" else RuntimeError("bad text")
        self.embedded.extend(texts)
        return [self.query(text)[None] for text in texts]


@dataclass
class StubGeneration:
    deltas: list[str]
    fits: int
    pieces_used: int = 0
    is_constrained: bool = False
    finish_reason: str = "stop"
    closed: bool = False
    usage: Usage = field(default_factory=lambda: Usage(100, 5))
    receipt: Receipt = field(
        default_factory=lambda: Receipt(
            "full", "isolated", 90, 10, 70, 10, 20, ms=Timings(first_token=5.0, total=9.0)
        )
    )

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.closed or not self.deltas:
            raise StopIteration
        self.pieces_used = self.fits
        return self.deltas.pop(0)

    def close(self) -> None:
        self.closed = True


@dataclass
class StubEngine:
    """Compiles by writing a tiny KV; answers with the text it is given, else with the first passage."""

    store: Any
    name: str = "stub-lm"
    fingerprint: str = "lm-1"
    tokenizer_fingerprint: str = "tok-1"
    profile: str = "profile-1"
    dtype: str = "float32"
    compile_mode: str = "isolated"
    refusal: str | None = None
    answer: str | None = None
    fits: int | None = None
    interrupt_at: int | None = None
    compiled: list[Any] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    samplings: list[Any] = field(default_factory=list)
    context_window: int = 8192

    def lay_out(self, prompt: Any, n_new: int) -> Any:
        return SimpleNamespace(end=100)

    def lacking(self, prompt: Any, policy: Any, *, n_new: int) -> dict[int, int]:
        keys = map(self.key_of, prompt.pieces)
        return {n: 7 for n, key in enumerate(keys) if not self.store.contains(key)}

    def key_of(self, piece: Any, mode: str | None = None) -> str:
        return hashlib.sha256((self.profile + piece.text).encode()).hexdigest()

    cache = SimpleNamespace(profile="cache-1")
    kv_bytes_per_token = 8
    kv_dtype = "float32"

    def own_keys(self) -> set[str]:
        return {hashlib.sha256(f"own {self.profile}".encode()).hexdigest()}

    def put(self, key: str) -> None:
        import torch

        zeros = torch.zeros(1, 1, 1, 2)
        self.store.put(key, zeros, zeros, {})

    def compile(self, pieces: Sequence[Any]) -> Iterator[tuple[int, str, int]]:
        for key in self.own_keys():
            self.put(key)
        for index, piece in enumerate(pieces):
            if self.interrupt_at is not None and len(self.compiled) >= self.interrupt_at:
                raise KeyboardInterrupt
            key = self.key_of(piece)
            is_new = not self.store.contains(key)
            if is_new:
                self.put(key)
                self.compiled.append(piece)
            yield index, key, len(piece.text.split()) if is_new else 0

    def generate(self, prompt: Any, *, policy: Any, sampling: Any) -> StubGeneration:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        text = self.answer if self.answer is not None else prompt.pieces[0].text
        fits = len(prompt.pieces) if self.fits is None else min(self.fits, len(prompt.pieces))
        return StubGeneration(["", *re.findall(r"\S+\s*", text)], fits)


@dataclass
class StubCompiler:
    """An engine that writes tiny KV, and says how many tokens it computed."""

    store: Any
    profile: str = "profile-1"
    refusal: str | None = None
    kv_bytes_per_token: int = 10
    on_compile: Callable[[], object] = lambda: None
    compiled: list[Any] = field(default_factory=list)

    def key_of(self, piece: Any, mode: str | None = None) -> str:
        parts = (self.profile, piece.namespace, piece.text, piece.before)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def own_keys(self) -> set[str]:
        return set()

    def compile(self, pieces: Any) -> Iterator[tuple[int, str, int]]:
        for index, piece in enumerate(pieces):
            key = self.key_of(piece)
            self.on_compile()
            is_new = self.store is None or not self.store.contains(key)
            if is_new and self.store is not None:
                import torch

                zeros = torch.zeros(1, 1, 1, 2)
                self.store.put(key, zeros, zeros, {})
                self.compiled.append(piece)
            yield index, key, len(piece.text.split()) if is_new else 0


class Bench:
    """A folder of documents and the index over it; `open` gives a pipeline as a new process would."""

    def __init__(self, folder: Path) -> None:
        self.docs = folder / "docs"
        self.docs.mkdir()
        self.config = Config(home=folder / "home", index=folder / "index", min_score=0.15)
        self.embedder = StubEmbedder()
        self.engine = StubEngine(None)

    def write(self, name: str, text: str) -> Path:
        path = self.docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def open(self, **changes: Any) -> Pipeline:
        pipeline = Pipeline(
            replace(self.config, **changes),
            create=True,
            embedder=self.embedder,
            engine=self.engine,
            counter=WordCounter(),
        )
        self.engine.store = pipeline.kv_store
        return pipeline

    def ingest(self, *paths: Path, **options: Any) -> Any:
        with self.open() as pipeline:
            return pipeline.ingest(paths or [self.docs], **options)

    def ask(self, question: str, **options: Any) -> Any:
        with self.open() as pipeline:
            return pipeline.ask(question, **options)

    def found(self, query: str) -> str:
        """All texts that a search returns, as one."""
        with self.open() as pipeline:
            return "\n".join(hit.chunk.text for hit in pipeline.search(query, k=50))

    def kv_keys(self) -> set[str]:
        """The keys of documents' KV on disk, without the engine's own."""
        with self.open() as pipeline:
            return pipeline.kv_store.keys() - self.engine.own_keys()


@pytest.fixture
def make_compiler() -> type[StubCompiler]:
    return StubCompiler


@pytest.fixture
def word_counter() -> WordCounter:
    return WordCounter()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def museum(bench: Bench) -> Bench:
    """Three documents, ingested."""
    bench.write("returns.md", "Goods can be returned within 45 days of purchase.\n")
    bench.write("museum.txt", "The harbour museum opens at ten. Its door code is 4471.\n")
    bench.write("sub/ferry.txt", "The ferry to the island leaves every hour from pier three.\n")
    bench.ingest()
    return bench
