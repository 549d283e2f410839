"""`EpicragLLM`: the engine as a LlamaIndex LLM that knows which parts of a message are cached chunks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM

from epicrag.config import DEFAULT_LINK_POLICY
from epicrag.errors import UsageError
from epicrag.llamaindex.blocks import passage_before
from epicrag.llamaindex.messages import Asked, Reading, Recogniser, to_asked
from epicrag.llamaindex.structured import StructuredVerbs
from epicrag.repeats import UntilRepeat
from epicrag.serving.constrain import Grammar
from epicrag.serving.policies import Policy, parse_policy
from epicrag.serving.prompt import DEFAULT_SYSTEM
from epicrag.serving.sample import Sampling
from epicrag.threads import in_thread, in_thread_async

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline
    from epicrag.serving.engine import Engine
    from epicrag.serving.generation import Generation

_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
SETTINGS = (*_SAMPLING, "link_policy")
"""What may be set for the model, and for one call of it."""

_KINDS: dict[str, tuple[Any, str]] = {
    "max_tokens": (Integral, "a whole number"),
    "top_k": (Integral, "a whole number"),
    "seed": (Integral, "a whole number"),
    "temperature": (Real, "a number"),
    "top_p": (Real, "a number"),
    "stop": ((str, list, tuple), "a text or a list of texts"),
    "link_policy": (str, "a text"),
    "grammar": (Grammar, "a Grammar"),
}


class EpicragLLM(StructuredVerbs, LLM):
    """A model with its chunk cache.

    Every CitableBlock, of whichever message, is a segment: tokenised alone, byte for byte, and its KV reused
    wherever it stands. TextBlocks are ordinary text; where there are no segments, the passages of the index are
    looked for in it, so that engines which make one text of everything reuse what they keep whole. The settings
    below can be given to each call, too. The last chunk of a stream, like a whole answer, carries `raw["usage"]`,
    `raw["receipt"]`, `raw["segments"]` (their sources, in prompt order), `raw["segment_tokens"]`, `raw["dropped"]`
    (how many of the last message's did not fit) and `raw["finish_reason"]`: "stop", "length", or "repeats" where it
    was stopped as it began to repeat itself.
    """

    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(default=256, description="Most tokens of one answer.")
    temperature: float = Field(default=0.0, description="0 always takes the likeliest token.")
    top_p: float = Field(default=1.0, description="Draw from the likeliest tokens of this share.")
    top_k: int = Field(default=0, description="Draw from this many likeliest tokens; 0: all.")
    seed: int | None = Field(default=None, description="Equal seeds give equal answers.")
    stop: tuple[str, ...] = Field(default=(), description="Texts that end the answer.")
    link_policy: str = Field(
        default=DEFAULT_LINK_POLICY, description="How reused chunks are linked."
    )
    documents_prompt: str = Field(
        default=DEFAULT_SYSTEM,
        description="System prompt of a chat that brings documents but no system message.",
    )

    _pipeline: Any = PrivateAttr(default=None)
    _engine: Any = PrivateAttr(default=None)
    _recognise: Any = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self,
        pipeline: Pipeline | None = None,
        *,
        engine: Engine | None = None,
        recognise: Recogniser | bool = True,
        **settings: Any,
    ) -> None:
        """Use the model of a pipeline, or a bare engine; settings default to the pipeline's.

        `recognise` finds known passages in flat text: those of the pipeline's index (True), none (False), or as
        a function does that splits a text into its plain parts and its `Piece`s.
        UsageError: neither is given, or a setting means nothing. The model loads at first need.
        """
        if pipeline is None and engine is None:
            raise UsageError(
                "EpicragLLM was given no model", "use EpicragLLM(Pipeline.open()), or engine=…"
            )
        given = {name: value for name, value in settings.items() if value is not None}
        if "stop" in given:
            given["stop"] = _stops(given["stop"])
        super().__init__(**{**_configured(pipeline), **given})
        self._pipeline, self._engine = pipeline, engine
        self._recognise = recognise
        self._choices({})

    @classmethod
    def class_name(cls) -> str:
        return "EpicragLLM"

    @property
    def engine(self) -> Engine:
        """The engine, loaded once, whichever thread asks first."""
        with self._lock:
            if self._engine is None:
                self._engine = self._pipeline.engine
            engine: Engine = self._engine
            return engine

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.engine.context_window,
            num_output=self.max_tokens,
            is_chat_model=True,
            is_function_calling_model=False,
            model_name=self.engine.name,
        )

    # --- one answer ---

    def _answer(
        self, messages: Sequence[ChatMessage], settings: dict[str, Any]
    ) -> Generator[ChatResponse, None, None]:
        """Check everything now; the model runs when the result is iterated."""
        policy, sampling = self._choices(settings)
        asked = self._asked(messages, sampling.max_tokens)
        engine = self.engine
        if self._pipeline and asked.prompt.pieces:
            self._pipeline.foretell_kv(asked.prompt, policy, sampling.max_tokens)
        generation = engine.generate(asked.prompt, policy=policy, sampling=sampling)
        return _responses(generation, engine, asked)

    def _asked(self, messages: Sequence[ChatMessage], max_tokens: int) -> Asked:
        """What the engine is asked. Segments of the last message that do not fit are left out, from the last."""
        reading = Reading(self.documents_prompt, self._passage_before, self._recogniser)
        asked = to_asked(messages, reading)
        if not asked.earlier:
            return asked  # the engine leaves out what does not fit
        for most in range(asked.given, 0, -1):
            if _segments_in(self.engine, asked, max_tokens) is not None:
                break
            asked = to_asked(messages, reading, most=most - 1)
        return asked

    @property
    def _recogniser(self) -> Recogniser | None:
        if not self._recognise or callable(self._recognise):
            return self._recognise or None
        if self._pipeline is None:
            return None
        with self._lock:
            recogniser: Recogniser = self._pipeline.recogniser.parts
            return recogniser

    def segments_in(self, messages: Sequence[ChatMessage], **settings: Any) -> int | None:
        """How many of the segments fit into the window, with room for an answer; None: not even the question.

        UsageError: there is no question, or a setting means nothing.
        """
        _, sampling = self._choices(settings)
        asked = to_asked(messages, Reading(self.documents_prompt))
        return _segments_in(self.engine, asked, sampling.max_tokens)

    async def _aanswer(
        self, messages: Sequence[ChatMessage], settings: dict[str, Any]
    ) -> Generator[ChatResponse, None, None]:
        """`_answer`, which reads and lays out texts, apart from the event loop."""
        return await asyncio.to_thread(self._answer, messages, settings)

    def _passage_before(self, source: str) -> str | None:
        if not self._pipeline:
            return None
        with self._pipeline.turn:
            return passage_before(self._pipeline.catalog, source)

    def _choices(self, settings: dict[str, Any]) -> tuple[Policy, Sampling]:
        """The settings of one call laid over the model's own; UsageError for what is none."""
        given = {name: value for name, value in settings.items() if value is not None}
        grammar = given.pop(
            "grammar", None
        )  # of one call: what all answers would follow is no setting
        given.pop("formatted", None)  # LlamaIndex's own: text for a completion is always as it is
        if given.pop("tools", None):
            raise UsageError(f"{self.class_name()} calls no tools", "leave out tools=…")
        for name in given:
            if name not in SETTINGS:
                raise _unknown(name)
        for name, value in {
            **given,
            **({"grammar": grammar} if grammar is not None else {}),
        }.items():
            _refuse_mistyped(name, value)
        values = {name: given.get(name, getattr(self, name)) for name in SETTINGS}
        policy = parse_policy(values.pop("link_policy"))
        return policy, Sampling(**{**values, "stop": _stops(values["stop"]), "grammar": grammar})

    # --- LlamaIndex's verbs ---

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _last(self._answer(messages, kwargs))

    @llm_chat_callback()
    def stream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> Generator[ChatResponse, None, None]:
        return in_thread(self._answer(messages, kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return await _alast(in_thread_async(await self._aanswer(messages, kwargs)))

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> AsyncGenerator[ChatResponse, None]:
        return in_thread_async(await self._aanswer(messages, kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return _completion(_last(self._answer(_question(prompt), kwargs)))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Generator[CompletionResponse, None, None]:
        responses = self._answer(_question(prompt), kwargs)
        return in_thread(_completion(response) for response in responses)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        responses = await self._aanswer(_question(prompt), kwargs)
        return _completion(await _alast(in_thread_async(responses)))

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> AsyncGenerator[CompletionResponse, None]:
        responses = await self._aanswer(_question(prompt), kwargs)
        return in_thread_async(_completion(response) for response in responses)


def _responses(
    generation: Generation, engine: Engine, asked: Asked
) -> Generator[ChatResponse, None, None]:
    """An answer as it grows; then once more, with what it cost."""
    text = ""
    with closing(generation):
        deltas = UntilRepeat(generation)
        for delta in deltas:
            if delta:
                text += delta
                yield _response(text, delta, {"dropped": asked.dropped(generation.pieces_used)})
        used = generation.pieces_used
        raw = {
            "model": engine.name,
            "finish_reason": deltas.finish_reason,
            "usage": asdict(generation.usage),
            "receipt": asdict(generation.receipt),
            "dropped": asked.dropped(used),
            "segments": list(asked.sources[:used]),
            "segment_tokens": [
                len(engine.tokenizer.ids(p.standing)) for p in asked.prompt.pieces[:used]
            ],
        }
    yield _response(text, "", raw)


def _segments_in(engine: Engine, asked: Asked, max_tokens: int) -> int | None:
    try:
        layout = engine.lay_out(asked.prompt, max_tokens)
    except UsageError:
        return None
    return len(asked.prompt.pieces) - layout.dropped


def _response(text: str, delta: str, raw: dict[str, Any]) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return ChatResponse(message=message, delta=delta, raw=raw)


def _completion(response: ChatResponse) -> CompletionResponse:
    text = response.message.content or ""
    return CompletionResponse(text=text, delta=response.delta, raw=response.raw)


def _last(responses: Generator[ChatResponse, None, None]) -> ChatResponse:
    with closing(responses):
        for response in responses:
            last = response
    return last.model_copy(update={"delta": None})


async def _alast(responses: AsyncGenerator[ChatResponse, None]) -> ChatResponse:
    async for response in responses:
        last = response
    return last.model_copy(update={"delta": None})


def _question(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def _configured(pipeline: Pipeline | None) -> dict[str, Any]:
    if pipeline is None:
        return {}
    config = pipeline.config
    return {
        "max_tokens": config.max_tokens,
        "link_policy": config.link_policy,
        "documents_prompt": config.system_prompt,
    }


def _stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _refuse_mistyped(name: str, value: Any) -> None:
    """UsageError for a setting of a call that is of no kind it can be; the model's own are seen to by pydantic."""
    kinds, wanted = _KINDS[name]
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if name == "stop" and not isinstance(value, str):
        fits = fits and all(isinstance(text, str) for text in value)
    if not fits:
        raise UsageError(f"{name} must be {wanted}, not {value!r}")


def _unknown(name: str) -> UsageError:
    near = get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"possible are {', '.join(SETTINGS)}"
    return UsageError(f"EpicragLLM has no setting {name!r}", hint)
