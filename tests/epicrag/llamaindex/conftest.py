"""A model that answers as told, and a pipeline of a few passages in place of an index."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from epicrag.config import Config
from epicrag.errors import UsageError
from epicrag.serving.prompt import Chat
from epicrag.types import Chunk, Found, Hit, Place, Receipt, Relevance, Usage


class Tokens:
    """One token a character."""

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


class Words:
    """A generation of given deltas. With a `gate`, each delta but the first waits for it."""

    def __init__(self, engine: ToldEngine, n_pieces: int, policy: Any) -> None:
        self._engine = engine
        said = engine.says(engine.prompts[-1]) if engine.says else None
        self._deltas = ["", *(engine.answer if said is None else [said])]
        self._fits = n_pieces if engine.fits is None else min(engine.fits, n_pieces)
        self._dropped = n_pieces - self._fits
        self._policy = policy.name
        self.pieces_used = 0
        self.is_constrained = False
        self.finish_reason = engine.reason
        self.given = 0
        self.threads: set[str] = set()
        self.closed = threading.Event()

    @property
    def usage(self) -> Usage:
        return Usage(321, self.given)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self._policy, "prefix", 300, 100, 150, 50, 21, self._dropped)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.threads.add(threading.current_thread().name)
        if self.given > 1 and self._engine.gate is not None:
            assert self._engine.gate.wait(10)
        if self._engine.failure and self.given:
            raise self._engine.failure
        if self.closed.is_set() or self.given == len(self._deltas):
            raise StopIteration
        self.pieces_used = self._fits
        self.given += 1
        return self._deltas[self.given - 1]

    def close(self) -> None:
        self.closed.set()


@dataclass
class ToldEngine:
    answer: Sequence[str] = ("The ", "code ", "is ", "4471.")
    fits: int | None = None
    gate: threading.Event | None = None
    failure: Exception | None = None
    reason: str = "stop"
    name: str = "told-lm"
    context_window: int = 4096
    tokenizer: Tokens = field(default_factory=Tokens)
    prompts: list[Any] = field(default_factory=list)
    choices: list[tuple[Any, Any]] = field(default_factory=list)
    generations: list[Words] = field(default_factory=list)
    says: Callable[[Any], str] | None = None

    def lay_out(self, prompt: Any, n_new: int) -> Any:
        """A character is a token; pieces of a Prompt leave from the last on."""
        room = self.context_window - n_new - sum(map(len, texts_of(prompt)))
        if room < 0 or (
            isinstance(prompt, Chat) and room < sum(len(p.text) for p in prompt.pieces)
        ):
            raise UsageError("too long")
        fits = 0
        for piece in prompt.pieces:
            room -= len(piece.text)
            fits += room >= 0
        dropped = len(prompt.pieces) - fits
        return SimpleNamespace(dropped=dropped)

    def generate(self, prompt: Any, *, policy: Any, sampling: Any) -> Words:
        self.prompts.append(prompt)
        self.choices.append((policy, sampling))
        self.generations.append(Words(self, len(prompt.pieces), policy))
        return self.generations[-1]


def texts_of(prompt: Any) -> list[str]:
    """Every text of a prompt but its pieces'."""
    if isinstance(prompt, Chat):
        return [part for m in prompt.messages for part in m.parts if isinstance(part, str)]
    return [prompt.system, *(turn.text for turn in prompt.history), prompt.question]


@dataclass
class Shelf:
    """What of a Catalog the LLM asks for: chunks by row, and the one before each."""

    rows: dict[int, Chunk]

    def chunk(self, row: int) -> Chunk:
        return self.rows[row]

    def previous(self, row: int) -> Chunk | None:
        return self.rows.get(row - 1)


class ToldPipeline:
    """Every search finds all passages, in their order."""

    def __init__(self, folder: Path, engine: ToldEngine, chunks: Sequence[Chunk]) -> None:
        self.config = Config(home=folder, index=folder / "index", min_score=0.15)
        self.engine = engine
        self.turn = threading.RLock()
        self.recogniser = SimpleNamespace(parts=lambda text: (text,))
        self.options: list[dict[str, Any]] = []
        self.catalog = Shelf(dict(enumerate(chunks, 1)))
        self.queries: list[tuple[str, int | None]] = []
        self.scores = [0.9 - 0.1 * n for n in range(len(chunks))]
        self.filters: list[Any] = []
        self.threads: set[str] = set()
        self.foretold: list[tuple[int, int]] = []
        self.is_closed = False

    def find(
        self, query: str, *, k: int | None = None, filter: Any = None, **options: Any
    ) -> Found:
        self.options.append(options)
        self.queries.append((query, k))
        self.filters.append(filter)
        self.threads.add(threading.current_thread().name)
        found = zip(self.catalog.rows.items(), self.scores, strict=True)
        hits = [Hit(row, chunk, score) for (row, chunk), score in found][:k]
        is_relevant = max(self.scores) >= 0.15
        return Found(tuple(hits), Relevance(is_relevant, max(self.scores), 0.15, "auto"))

    def foretell_kv(self, prompt: Any, policy: Any, n_new: int) -> dict[int, int]:
        self.foretold.append((len(prompt.pieces), n_new))
        return {}

    def close(self) -> None:
        self.is_closed = True


TEXTS = (
    "The harbour museum opens at ten. Its door code is 4471.\n",
    "    indented:\n\tcode = {context_str} % {0}\n\n",
    "  Goods can be returned within 45 days.",
)


@pytest.fixture
def engine() -> ToldEngine:
    return ToldEngine()


@pytest.fixture
def chunks() -> list[Chunk]:
    """Three passages of one document, the second under a heading, with bytes that templates destroy."""
    places = [Place(lines=(1, 1)), Place(page=2, lines=(2, 4), heading="Code"), Place(lines=(5, 5))]
    starts = [0, 56, 100]
    return [
        Chunk("/docs/house.md", n, start, start + len(text), text, None, place, len(text))
        for n, (text, start, place) in enumerate(zip(TEXTS, starts, places, strict=True))
    ]


@pytest.fixture
def pipeline(tmp_path: Path, engine: ToldEngine, chunks: list[Chunk]) -> ToldPipeline:
    return ToldPipeline(tmp_path, engine, chunks)


@pytest.fixture
def llm(pipeline: ToldPipeline) -> Any:
    from epicrag.llamaindex import EpicragLLM

    return EpicragLLM(pipeline)


@pytest.fixture
def events() -> Iterator[Callable[[], list[str]]]:
    """A function that returns the names of all events dispatched so far."""
    import llama_index.core.instrumentation as instrument
    from llama_index.core.instrumentation.event_handlers import BaseEventHandler

    names: list[str] = []

    class Listener(BaseEventHandler):
        def handle(self, event: Any, **_: Any) -> None:
            names.append(event.class_name())

    root = instrument.get_dispatcher()
    before = list(root.event_handlers)
    root.add_event_handler(Listener())
    yield lambda: names
    root.event_handlers = before


@pytest.fixture
def raws() -> Iterator[list[dict[str, Any]]]:
    """What the models answers so far came with (`ChatResponse.raw`), as the events tell it."""
    import llama_index.core.instrumentation as instrument
    from llama_index.core.instrumentation.event_handlers import BaseEventHandler

    found: list[dict[str, Any]] = []

    class Listener(BaseEventHandler):
        def handle(self, event: Any, **_: Any) -> None:
            if event.class_name() in ("LLMChatEndEvent", "LLMCompletionEndEvent"):
                found.append(event.response.raw)

    root = instrument.get_dispatcher()
    before = list(root.event_handlers)
    root.add_event_handler(Listener())
    yield found
    root.event_handlers = before


@pytest.fixture
def loop() -> Iterator[None]:
    """An event loop of the thread, closed afterwards: LlamaIndex makes one that stays open where there is none.

    What its `Memory` leaves to the collector is collected here.
    """
    found = asyncio.new_event_loop()
    asyncio.set_event_loop(found)
    yield
    asyncio.set_event_loop(None)
    found.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
