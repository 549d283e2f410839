"""Prompts to measure with: passages of the index, or of a file of questions, that fill so many tokens."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epicrag.errors import UsageError
from epicrag.questions import Item, Passage
from epicrag.scores import holds
from epicrag.types import Chunk, Document, Hit

if TYPE_CHECKING:
    from epicrag.connectors.split import TokenCounter
    from epicrag.pipeline import Pipeline

SEARCHED = 100
"""Passages asked for at most: those that do not fit any more are left out."""
TOPIC_WORDS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How large a prompt is to be: at most so many tokens of passages, and so many passages."""

    tokens: int = 2000
    chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """A question with its passages, not yet in an order."""

    question: str
    hits: tuple[Hit, ...]
    answer: str | None = None
    """The right answer, where the file has one."""

    @property
    def tokens(self) -> int:
        return sum(hit.chunk.n_tokens for hit in self.hits)


def draw(
    pipeline: Pipeline, items: Sequence[Item], count: int, size: Size, seed: int
) -> list[Draw]:
    """Draw `count` prompts: of these questions, else of passages of the index at random.

    The same seed over the same index and file draws the same.
    """
    rng = random.Random(seed)
    if not items:
        return _at_random(pipeline, count, size, rng)
    chosen = sorted(rng.sample(range(len(items)), min(count, len(items))))
    return [_asked(pipeline, items[index], size) for index in chosen]


def _asked(pipeline: Pipeline, item: Item, size: Size) -> Draw:
    if item.documents:
        hits = documents_of(item, pipeline.counter, pipeline.config.chunk_tokens)
        hits.sort(key=lambda hit: not holds(hit.chunk.text, item.answers))
    else:
        hits = pipeline.search(item.question, k=SEARCHED)
    fitting = tuple(_fitting(hits, size))
    if not fitting:
        raise UsageError(
            f"{item.where}: no passage for {item.question!r} has {size.tokens} tokens or fewer",
            "raise --prompt-tokens",
        )
    return Draw(item.question, fitting, item.answers[0] if item.answers else None)


def _at_random(pipeline: Pipeline, count: int, size: Size, rng: random.Random) -> list[Draw]:
    """Passages from all over the index, with a question about one of them."""
    once = {chunk.id: (row, chunk) for row, chunk in pipeline.catalog.all_chunks()}
    known = [Hit(row, chunk, 0.0) for row, chunk in once.values()]
    draws = []
    for _ in range(count):
        hits = tuple(_fitting(rng.sample(known, len(known)), size))
        if not hits:
            raise UsageError(
                f"no passage of the index has {size.tokens} tokens or fewer"
                if known
                else f"nothing is in the index at {pipeline.config.index}",
                "raise --prompt-tokens" if known else "put documents into it: epicrag ingest PATH",
            )
        draws.append(Draw(f"What do the documents say about {topic(hits[0].chunk)}?", hits))
    return draws


def topic(chunk: Chunk) -> str:
    """What a passage is about: its innermost heading, else how it begins."""
    heading = (chunk.place.heading or chunk.title or "").split(" > ")[-1]
    return " ".join((heading or chunk.text).split()[:TOPIC_WORDS]).strip(" .,:;?!#=")


def _fitting(hits: Iterable[Hit], size: Size) -> Iterator[Hit]:
    """Keep passages while they fit, passing over one that is too long."""
    room, places = size.tokens, size.chunks
    for hit in hits:
        if places == 0:
            return
        if hit.chunk.n_tokens <= room:
            room -= hit.chunk.n_tokens
            places = None if places is None else places - 1
            yield hit


def documents_of(item: Item, counter: TokenCounter, chunk_tokens: int) -> list[Hit]:
    """Return an item's own documents as passages, cut as ingest cuts, each text once."""
    once: dict[str, Hit] = {}
    for number, passage in enumerate(item.documents, 1):
        for chunk in _chunks(passage, number, counter, chunk_tokens):
            once.setdefault(chunk.id, Hit(-1, chunk, 1.0))  # a row below 0: not of the index
    return list(once.values())


def passage_name(passage: Passage, number: int) -> str:
    """What the `number`th document of an item is called in place of a path."""
    return passage.title or f"document {number}"


def _chunks(passage: Passage, number: int, counter: TokenCounter, chunk_tokens: int) -> list[Chunk]:
    from epicrag.connectors.split import split

    digest = hashlib.sha256(passage.text.encode("utf-8", "surrogatepass")).hexdigest()
    document = Document(
        passage_name(passage, number), passage.text, digest, title=passage.title or None
    )
    return split(document, counter, chunk_tokens=chunk_tokens)
