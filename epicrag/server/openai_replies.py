"""What OpenAI's clients get back, to the field: whole, or piece by piece.

Beside OpenAI's fields stands `epicrag`: the receipt, the sources and what else is worth knowing of an answer.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from epicrag import __version__
from epicrag.types import Receipt, Source, Timings, Usage

if TYPE_CHECKING:
    from epicrag.server.openai_types import Request
    from epicrag.server.state import State
    from epicrag.serving.engine import Engine

FinishReason = Literal["stop", "length"]


class Reply(BaseModel):
    """What is not set is not sent."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    def wire(self) -> str:
        return self.model_dump_json(exclude_unset=True)


class Extension(Reply):
    """What epicrag says of an answer besides OpenAI's fields."""

    answered: bool
    """False: nothing was found, or the model wrote nothing; the text says so."""
    grounded: bool | None
    """Whether the answer's words were found in a source; null where there were none to look in."""
    sources: list[Source]
    """The passages put before the model, by the numbers of the markers in the text."""
    receipt: Receipt | None
    """What was reused, what was computed, and how long it took; null where no model ran."""
    notes: list[str]
    """What a reader of the answer should know."""
    warnings: list[str]
    """What the request asked for and did not get."""


class PromptDetails(Reply):
    cached_tokens: int
    """Tokens whose KV was there: exact and stitched."""
    audio_tokens: int


class CompletionDetails(Reply):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Delta(Reply):
    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None


class AssistantMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    """In place of content: why there is none of the shape that was asked for."""
    annotations: list[dict[str, Any]]


class ChatChoice(Reply):
    index: int
    message: AssistantMessage
    logprobs: None
    finish_reason: FinishReason


class ChatDelta(Reply):
    index: int
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str
    epicrag: Extension


class ChatChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatDelta]
    usage: CompletionUsage | None = None
    epicrag: Extension | None = None


class TextChoice(Reply):
    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None
    epicrag: Extension | None = None
    """Of each choice, where there are several."""


class Completion(Reply):
    """Whole, or a piece of one: OpenAI's pieces have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage | None = None
    epicrag: Extension | None = None


# --- made from an answer ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """A text to its end: what stood in it has been sent, and this is what there is to know."""

    finish_reason: str
    """Of a generation: "stop", "length", or REPEATS."""
    usage: Usage
    receipt: Receipt | None = None
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    answered: bool = True
    grounded: bool | None = None

    @property
    def reason(self) -> FinishReason:
        """As OpenAI's clients know it."""
        return "length" if self.finish_reason == "length" else "stop"

    @property
    def extension(self) -> Extension:
        return Extension(
            answered=self.answered,
            grounded=self.grounded,
            sources=list(self.sources),
            receipt=_rounded(self.receipt) if self.receipt else None,
            notes=list(self.notes),
            warnings=list(self.warnings),
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A text in place of the JSON that was asked for: there is nothing to put into it."""

    text: str


def _rounded(receipt: Receipt) -> Receipt:
    ms = {name: round(getattr(receipt.ms, name), 3) for name in Timings.__dataclass_fields__}
    return replace(receipt, ms=Timings(**ms))


def usage_of(*written: Written) -> CompletionUsage:
    """The usage of one answer, or of several together."""
    receipts = [one.receipt for one in written if one.receipt]
    asked = sum(one.usage.prompt_tokens for one in written)
    made = sum(one.usage.completion_tokens for one in written)
    return CompletionUsage(
        prompt_tokens=asked,
        completion_tokens=made,
        total_tokens=asked + made,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(receipt.exact + receipt.stitched for receipt in receipts),
            audio_tokens=0,
        ),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=0,
            audio_tokens=0,
            accepted_prediction_tokens=0,
            rejected_prediction_tokens=0,
        ),
    )


def fingerprint_of(engine: Engine) -> str:
    """OpenAI's `system_fingerprint`: of the version, the model and what decides its KV."""
    text = f"{__version__}|{engine.fingerprint}|{engine.profile}"
    return f"fp_{sha256(text.encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all pieces of a response have in common."""

    kind: Literal["chatcmpl", "cmpl"]
    model: str
    fingerprint: str
    with_usage: bool = False
    """Whether a stream ends with a piece of its own for the usage."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, state: State, kind: Literal["chatcmpl", "cmpl"], request: Request) -> Envelope:
        options = request.stream_options
        return cls(
            kind,
            request.model,
            fingerprint_of(state.pipeline.engine),
            with_usage=bool(options and options.include_usage),
        )

    def fields(self) -> dict[str, Any]:
        return {
            "id": f"{self.kind}-{self.id}",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    # --- chat ---

    def chat(self, text: str, refusal: str | None, written: Written) -> ChatCompletion:
        message = AssistantMessage(
            role="assistant",
            content=None if refusal is not None else text,
            refusal=refusal,
            annotations=[],
        )
        return ChatCompletion(
            object="chat.completion",
            choices=[
                ChatChoice(index=0, message=message, logprobs=None, finish_reason=written.reason)
            ],
            usage=usage_of(written),
            epicrag=written.extension,
            **self.fields(),
        )

    def chat_opening(self) -> ChatChunk:
        """The first piece: whose words follow."""
        return self._chat_chunk(Delta(role="assistant", content="", refusal=None))

    def chat_delta(self, item: str | Refused) -> ChatChunk:
        delta = Delta(refusal=item.text) if isinstance(item, Refused) else Delta(content=item)
        return self._chat_chunk(delta)

    def chat_closing(self, written: Written) -> list[ChatChunk]:
        """The piece that says why it is over, and the one with the usage where that was asked for."""
        last = self._chat_chunk(Delta(), written.reason)
        if not self.with_usage:
            return [last.model_copy(update={"epicrag": written.extension})]
        counted = ChatChunk(
            object="chat.completion.chunk",
            choices=[],
            usage=usage_of(written),
            epicrag=written.extension,
            **self.fields(),
        )
        return [last, counted]

    def _chat_chunk(self, delta: Delta, reason: FinishReason | None = None) -> ChatChunk:
        choice = ChatDelta(index=0, delta=delta, logprobs=None, finish_reason=reason)
        usage: dict[str, Any] = {"usage": None} if self.with_usage else {}
        return ChatChunk(object="chat.completion.chunk", choices=[choice], **usage, **self.fields())

    # --- text ---

    def text(self, texts: list[str], written: list[Written]) -> Completion:
        several = len(texts) > 1
        choices = [
            self._text_choice(index, text, one, several)
            for index, (text, one) in enumerate(zip(texts, written, strict=True))
        ]
        single: dict[str, Any] = {} if several else {"epicrag": written[0].extension}
        return Completion(
            object="text_completion",
            choices=choices,
            usage=usage_of(*written),
            **single,
            **self.fields(),
        )

    def text_delta(self, index: int, text: str) -> Completion:
        return self._text_chunk(self._text_choice(index, text, None, False))

    def text_closing(self, index: int, written: Written, several: bool) -> Completion:
        """The piece that says why a choice is over."""
        chunk = self._text_chunk(self._text_choice(index, "", written, several))
        if several or self.with_usage:
            return chunk
        return chunk.model_copy(update={"epicrag": written.extension})

    def text_usage(self, written: list[Written]) -> Completion:
        single: dict[str, Any] = {} if len(written) > 1 else {"epicrag": written[0].extension}
        return Completion(
            object="text_completion",
            choices=[],
            usage=usage_of(*written),
            **single,
            **self.fields(),
        )

    def _text_chunk(self, choice: TextChoice) -> Completion:
        usage: dict[str, Any] = {"usage": None} if self.with_usage else {}
        return Completion(object="text_completion", choices=[choice], **usage, **self.fields())

    @staticmethod
    def _text_choice(index: int, text: str, written: Written | None, several: bool) -> TextChoice:
        said: dict[str, Any] = {"epicrag": written.extension} if written and several else {}
        return TextChoice(
            index=index,
            text=text,
            logprobs=None,
            finish_reason=written.reason if written else None,
            **said,
        )
