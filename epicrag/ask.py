"""One question's life: passages in, cited text out as it is generated, and the answer with its receipt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Self

from epicrag.citations import Citer
from epicrag.errors import AbstainedError
from epicrag.history import NOTHING_SAID, Kept
from epicrag.repeats import REPEATS, UntilRepeat
from epicrag.types import Answer, Hit, Receipt, Relevance, Source, Usage

if TYPE_CHECKING:
    from epicrag.serving.generation import Generation

_log = logging.getLogger("epicrag")

NOTHING_FOUND = "I found nothing about this in the indexed documents."
NO_ROOM = "I found passages about this, but none of them fits into the model's context window."


def nothing_found(relevance: Relevance | None) -> str:
    """Say that nothing was found; where it is a filter that fits nothing, that it is."""
    if relevance is not None and relevance.rule == "filter":
        return f"{NOTHING_FOUND[:-1]}: {relevance.reason}."
    return NOTHING_FOUND


def sources_of(hits: Sequence[Hit]) -> tuple[Source, ...]:
    """Number the passages as the prompt labels them: 1, 2, 3 … in the order they are given."""
    return tuple(
        Source(
            n=n,
            path=hit.chunk.document,
            page=hit.chunk.place.page,
            lines=hit.chunk.place.lines,
            heading=hit.chunk.place.heading,
            chunk=hit.chunk.id,
            score=hit.score,
            part=hit.chunk.place.part,
            cells=hit.chunk.place.cells,
        )
        for n, hit in enumerate(hits, 1)
    )


def notes_on(
    finish_reason: str,
    *,
    dropped: int,
    given: int,
    is_blank: bool,
    citer: Citer | None,
    limit: str = "--max-tokens",
) -> list[str]:
    """What a reader should know of an answer besides its text; `limit` is what its length is called there."""
    notes = []
    if dropped:
        notes.append(
            f"{dropped} of {given} passages did not fit into the model's window and were left out"
        )
    if finish_reason == REPEATS:
        notes.append("the model began to repeat itself, and was stopped")
    elif finish_reason == "length":
        notes.append(f"the answer was cut short at {limit}")
    if is_blank:
        notes.append("the model wrote nothing")
    elif citer and not citer.supported:
        what = (
            "the answer cites passages, but its words were not found in any"
            if citer.cited
            else "no passage was cited, and the answer's words were not found in them"
        )
        notes.append(f"{what}: check it against the sources")
    return notes


@dataclass(frozen=True, slots=True)
class Ask:
    """What an answer is made from, apart from the model: known before its first word."""

    question: str
    hits: tuple[Hit, ...]
    model: str
    retrieve_ms: float = 0.0
    strict: bool = False
    relevance: Relevance | None = None
    """What retrieval makes of the passages; None when they were given."""
    cite: bool = True
    """Whether markers are put into the text. False: it is the model's to the letter, as JSON has to be, and is
    not stopped where it repeats itself."""
    query: str = ""
    """What was searched for; "" where passages were given."""
    history: Kept = NOTHING_SAID
    """What of the conversation before it went into the prompt."""


class AnswerStream:
    """The text of an answer, piece by piece; `answer` stands when the iteration has ended.

    `hits` and `sources` are known before the first piece; what was dropped for want of room has left
    `answer.sources`. `notes` collects what a user should be told besides the answer. Under `strict` the
    iteration ends with an AbstainedError when the text could not be traced to any passage.
    """

    def __init__(
        self,
        ask: Ask,
        generation: Generation | None,
        abstention: str | None = None,
        on_end: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.question = ask.question
        self.hits = ask.hits
        self.relevance = ask.relevance
        self.history = ask.history
        self.sources = sources_of(ask.hits) if generation else ()
        self.notes: list[str] = []
        self.finish_reason = "stop"
        """That of the generation, or REPEATS, when the iteration has ended; "stop" where no model was asked."""
        self.abstains = False
        """Whether the text says that there is no answer: known with its first piece."""
        self._ask = ask
        self._generation = generation
        self._answer: Answer | None = None
        self._on_end = on_end
        self._pieces = (
            self._stream(generation)
            if generation
            else self._abstain(abstention or nothing_found(ask.relevance))
        )

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def answer(self) -> Answer:
        """The whole answer. RuntimeError while the iteration has not ended."""
        if self._answer is None:
            raise RuntimeError("the answer is still being written: iterate to its end first")
        return self._answer

    def conversation(self) -> dict[str, object]:
        """What was searched for, and what of the conversation was read: as JSON, when the answer stands."""
        kept, receipt = self.history, self.answer.receipt
        return {
            "query": self._ask.query or self.question,
            "history_tokens": kept.tokens,
            "history_reused": kept.reused(receipt),
            "dropped_turns": kept.dropped,
        }

    def finish(self) -> Answer:
        """Read to the end and return the answer."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        """Stop generating. What was not read is lost, and there is no `answer`."""
        if self._generation is not None:
            self._generation.close()
        self._pieces.close()

    def cancel(self) -> None:
        """`close` for another thread than the one that reads, which sees the iteration end."""
        if self._generation is not None:
            self._generation.close()

    # --- with the model ---

    def _stream(self, generation: Generation) -> Generator[str]:
        deltas = UntilRepeat(generation) if self._ask.cite else generation
        first = next(deltas, "")  # what fits is known with the first token
        if self.hits and not generation.pieces_used:
            generation.close()
            yield from self._abstain(NO_ROOM, "ask a shorter question, or lower --max-tokens")
            return
        hits = self.hits[: generation.pieces_used]
        citer = Citer([hit.chunk.model_text for hit in hits], self.question)
        shown: list[str] = []
        for delta in chain([first], deltas):
            cited = citer.feed(delta)
            if text := cited if self._ask.cite else delta:
                shown.append(text)
                yield text
        cited = citer.finish()
        if cited and self._ask.cite:
            shown.append(cited)
            yield cited
        self.finish_reason = deltas.finish_reason
        self._answer = self._cited("".join(shown), hits, citer, generation)
        self.notes.extend(self._ended())
        self._note(deltas.finish_reason, citer)

    def _ended(self) -> Sequence[str]:
        """What the books tell; the answer is there, and no fault of theirs takes it back."""
        if self._on_end is None:
            return ()
        try:
            return self._on_end()
        except Exception as error:  # noqa: BLE001 - whatever it is
            _log.warning("what an answer has left could not be noted: %s", error)
            return ()

    def _cited(
        self, text: str, hits: Sequence[Hit], citer: Citer, generation: Generation
    ) -> Answer:
        sources = [replace(source, cited=source.n in citer.cited) for source in sources_of(hits)]
        return Answer(
            question=self.question,
            text=text,
            answered=bool(text),
            sources=tuple(sources),
            receipt=self._receipt(generation.receipt, len(self.hits) - len(hits)),
            usage=generation.usage,
            model=self._ask.model,
            grounded=bool(text) and citer.supported,
            relevance=self._ask.relevance,
        )

    def _receipt(self, receipt: Receipt, dropped: int) -> Receipt:
        """The engine counts from its own call: add the time that retrieval took before it."""
        spent, ms = self._ask.retrieve_ms, receipt.ms
        return replace(
            receipt,
            dropped_chunks=max(dropped, receipt.dropped_chunks),
            ms=replace(
                ms, retrieve=spent, first_token=ms.first_token + spent, total=ms.total + spent
            ),
        )

    def _note(self, finish_reason: str, citer: Citer) -> None:
        answer = self.answer
        notes = notes_on(
            finish_reason,
            dropped=answer.receipt.dropped_chunks if answer.receipt else 0,
            given=len(self.hits),
            is_blank=not answer.answered,
            citer=citer,
        )
        self.notes[:0] = notes
        if answer.grounded:
            return
        if self._ask.strict:
            raise AbstainedError(
                "the answer's words were not found in any passage of the documents",
                "ask in other words, or without --strict",
            )

    # --- without it ---

    def _abstain(
        self, text: str, hint: str = "ask in other words, or lower --min-score"
    ) -> Generator[str]:
        """Say that there is no answer, and why; under `strict`, fail instead."""
        if self._ask.strict:
            if self._ask.relevance is not None and self._ask.relevance.rule == "filter":
                hint = "look at what the documents say of themselves: epicrag list --json"
            raise AbstainedError(text, hint)
        self.abstains = True
        self._answer = Answer(
            question=self.question,
            text=text,
            answered=False,
            sources=(),
            receipt=None,
            usage=Usage(0, 0),
            model=self._ask.model,
            relevance=self._ask.relevance,
        )
        yield text
